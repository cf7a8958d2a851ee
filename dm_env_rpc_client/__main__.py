"""`python -m dm_env_rpc_client` runs the command `dm-env-rpc`."""

from dm_env_rpc_client.cli.entry import main

if __name__ == "__main__":
    main()
