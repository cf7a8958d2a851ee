from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from tests.bridges.env_c_api.compiling import compile_library

MakeEnvironment = Callable[..., EnvCApiEnvironment]


@pytest.fixture(params=["1.4", "2.2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["here", "child"])
def isolated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def make() -> Iterator[MakeEnvironment]:
    """Makes environments of the complete library, or of a hostile one, and closes them."""
    made: list[EnvCApiEnvironment] = []

    def make_environment(
        connect: str = "complete_connect", *, version: str = "1.4", **kwargs: Any
    ) -> EnvCApiEnvironment:
        source = "complete" if connect.startswith("complete") else "hostile"
        library = compile_library(source, version)
        environment = EnvCApiEnvironment(library, connect, version=version, **kwargs)
        made.append(environment)
        return environment

    yield make_environment
    for environment in made:
        environment.close()


@pytest.fixture
def live() -> ctypes.c_int:
    """How many contexts of the complete library are live in this process."""
    library = ctypes.CDLL(compile_library("complete", "1.4"))
    return ctypes.c_int.in_dll(library, "complete_live_contexts")
