"""Other environment protocols, joined to dm_env."""
