"""`dm-env-rpc standalone`."""

from __future__ import annotations

import sys
from pathlib import Path

from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.standalone import FILE

EXAMPLES = examples(
    "dm-env-rpc standalone > dm_env_rpc_server.py",
    "python3.6 dm_env_rpc_server.py my_module:make_environment --address localhost:50051",
)


def standalone() -> None:
    """Prints the server in one file, for Python 3.6 and later with NumPy 1.13 and later.

    It serves an environment where this package cannot be installed.
    """
    sys.stdout.write(Path(FILE).read_text())
