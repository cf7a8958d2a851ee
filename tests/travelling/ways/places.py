"""The servers that all cells share."""

from __future__ import annotations

import contextlib
import functools
import itertools
from pathlib import Path
from typing import Any

from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve
from tests.travelling.environments.all import make, make_vector


class Places:
    """Servers, each of which begins to serve when it is first needed.

    Args:
      stack: ends them.
      folder: where recordings are.
    """

    def __init__(self, stack: contextlib.ExitStack, folder: Path):
        self._stack, self._folder = stack, folder
        self._numbers = itertools.count()

    def path(self) -> Path:
        """Returns the path of another recording."""
        return self._folder / f"{next(self._numbers)}.mcap"

    @functools.cached_property
    def own(self) -> str:
        return self._served(make)

    @functools.cached_property
    def vector(self) -> str:
        return self._served(make_vector)

    @functools.cached_property
    def processes(self) -> str:
        return self._served(make, processes=2)

    @functools.cached_property
    def grpc(self) -> str:
        return self._served(make, transport="grpc")

    @functools.cached_property
    def one_file(self) -> str:
        server = dm_env_rpc_server.serve(make, "localhost:0")
        self._stack.callback(server.stop)
        return str(server.address)

    def _served(self, factory: Any, **options: Any) -> str:
        return self._stack.enter_context(serve(factory, **options)).address
