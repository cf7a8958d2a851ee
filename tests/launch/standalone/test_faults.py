"""Who is at fault when a request to the one-file server fails, as in `tests/server`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.rpc import code_pb2

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import Server
from tests.support.environments import Echo


def _no_device() -> int:
    raise ValueError("no device")


class WithProperty(Echo):
    """Has a property whose getter fails."""

    properties: dict[str, Any] = {"x": (_no_device, lambda value: None)}  # noqa: RUF012


@pytest.fixture
def server() -> Any:
    def loaded(ballast: Any = None) -> WithProperty:
        return WithProperty()

    with Server(loaded) as running:
        yield running


def test_a_getter_that_fails_is_no_fault_of_its_reader_or_writer(server: Any) -> None:
    with make(server.address) as env:
        extension = PropertiesExtension(env.connection)
        asks: list[Callable[[], Any]] = [
            lambda: extension.read("x"), lambda: extension.write("x", 1),
        ]  # fmt: skip
        for number, ask in enumerate(asks, 1):
            with pytest.raises(DmEnvRpcError, match="no device") as caught:
                ask()
            assert caught.value.code == code_pb2.INTERNAL
            assert len(server.errors) == number


def test_the_settings_of_all_worlds_are_limited_together(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dm_env_rpc_server, "MAX_HELD_BYTES", 200_000)
    large = {"ballast": np.zeros(150_000, np.uint8)}
    with make(server.address, large):
        with pytest.raises(DmEnvRpcError, match="settings of all worlds would take") as caught:
            make(server.address, large)
        assert caught.value.code == code_pb2.RESOURCE_EXHAUSTED
        make(server.address, {"ballast": np.zeros(10_000, np.uint8)}).close()
    # The room of a world that is gone is free.
    make(server.address, large).close()
