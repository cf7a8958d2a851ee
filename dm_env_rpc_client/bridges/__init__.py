"""Environments that other protocols expose, as dm_env.Environment."""
