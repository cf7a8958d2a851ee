"""Remote environments, in any language, as `dm_env.Environment`."""
