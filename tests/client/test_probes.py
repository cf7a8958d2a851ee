"""Over grpcio, calls of a method that no server has show that a server is alive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client.testing import Response, ScriptedServer, scripted_server
from dm_env_rpc_client.transports.grpc.probes import Probes
from tests.support.scripted import extension
from tests.transports.raw_server import ask, both_ways

TRANSPORTS = ["grpc"]
TIMEOUT = 1.0


@both_ways
def test_a_server_that_has_no_such_method_is_alive_in_a_long_request(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Any] = []
    is_over = threading.Event()
    ended = Probes.ended

    def end(probes: Probes, error: Any) -> None:
        ended(probes, error)
        answered.append(error.code())
        if len(answered) == 3:  # Later than the timeout.
            is_over.set()

    def script(requests: Any, context: Any) -> Iterator[Any]:
        request = next(requests)
        assert is_over.wait(60)
        yield Response(extension=request.extension)

    monkeypatch.setattr(Probes, "ended", end)
    looks = ("transports.net.keepalive.", "client.connection._", "client.async_pipeline._")
    for place in looks:
        monkeypatch.setattr(f"dm_env_rpc_client.{place}LOOK_SECONDS", 0.1)

    # With one thread, which the stream takes.
    monkeypatch.setattr(scripted_server, "_STREAMS", 1)
    with ScriptedServer(script) as server:
        assert ask(server.address, is_async, 5, keepalive_timeout=TIMEOUT) == extension(5)
    assert {*answered} == {grpc.StatusCode.UNIMPLEMENTED}


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_answer_of_a_server_is_a_sign_of_life(code: grpc.StatusCode) -> None:
    class Answer(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return code

    probes = Probes(None, "server")
    probes.ended(Answer())
    is_of_grpcio = code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    assert probes.received == (0 if is_of_grpcio else 1)
