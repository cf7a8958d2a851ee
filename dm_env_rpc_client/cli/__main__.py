"""`python -m dm_env_rpc_client.cli` is `dm-env-rpc`."""

from dm_env_rpc_client.cli.entry import main

main()
