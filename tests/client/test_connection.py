"""Connection: every answer goes to its own request, or nobody gets any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import threading
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2

from dm_env_rpc_client import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, echo
from tests.client.scripts import held, silent
from tests.support.both_transports import EVERY
from tests.support.scripted import extension, number_of, settles
from tests.support.stopwatch import time_limit

TRANSPORTS = EVERY


def test_a_channel_of_the_users_own_stays_open(echo_server: ScriptedServer) -> None:
    with grpc.insecure_channel(echo_server.address) as channel:
        for number in range(2):
            with Connection(channel) as connection:
                assert connection.send(extension(number)) == extension(number)


def test_metadata_reaches_the_server() -> None:
    seen: dict[str, str | bytes] = {}

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        seen.update(context.invocation_metadata())
        yield from echo(requests, context)

    with ScriptedServer(script) as server:
        metadata = (("token", "secret"), ("raw-bin", b"\x00\xff"))
        with connect(server.address, metadata=metadata) as connection:
            connection.send(extension(0))
    assert seen["token"] == "secret"
    assert seen["raw-bin"] == b"\x00\xff"


def test_metadata_that_grpc_refuses_is_an_error_at_once(echo_server: ScriptedServer) -> None:
    with pytest.raises(SpecError, match="metadata"):
        connect(echo_server.address, metadata=[("Upper Case", "x")])


def test_requests_that_their_thread_waits_for_mix_with_futures(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address) as connection:
        for number in range(0, 300, 3):
            pending = connection.start(extension(number))
            future = connection.submit(extension(number + 1))
            assert connection.send(extension(number + 2)) == extension(number + 2)
            assert connection.wait(pending) == extension(number)
            assert future.result() == extension(number + 1)


def test_what_interprets_an_answer_may_send_a_request(echo_server: ScriptedServer) -> None:
    """As a reward that an adaptor computes may read a property."""
    with connect(echo_server.address, request_timeout=60) as connection:

        def ask(answer: any_pb2.Any) -> int:
            return number_of(answer) + number_of(connection.send(extension(10)))

        pendings = [connection.start(extension(number), ask) for number in range(3)]
        assert [connection.wait(pending) for pending in pendings] == [10, 11, 12]
        assert connection.send(extension(3)) == extension(3)


def test_more_requests_than_may_be_in_flight_wait_for_room(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address, request_timeout=60) as connection:
        pending = [connection.start(extension(number)) for number in range(3_000)]
        assert [connection.wait(each) for each in pending] == [extension(n) for n in range(3_000)]


def test_large_requests_are_bounded_by_bytes(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_BYTES_IN_FLIGHT", 100_000)
    large = [any_pb2.Any(value=bytes([number]) * 60_000) for number in range(20)]
    with connect(echo_server.address, request_timeout=60) as connection:
        futures = [connection.submit(request) for request in large]
        assert [future.result() for future in futures] == large


def test_a_callback_of_a_future_may_send_requests_of_its_own(echo_server: ScriptedServer) -> None:
    answered: concurrent.futures.Future[any_pb2.Any] = concurrent.futures.Future()
    with connect(echo_server.address, request_timeout=5) as connection:
        first = connection.submit(extension(1))
        first.add_done_callback(lambda _: answered.set_result(connection.send(extension(2))))
        assert connection.send(extension(3)) == extension(3)
        assert answered.result(20) == extension(2)


def test_an_interrupt_once_an_answer_is_read_ends_the_connection(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next request would get the answer that was dropped, or wait for it forever."""
    with connect(echo_server.address, request_timeout=60) as connection:
        read = connection._stream.read

        def interrupted(timeout: float, _: bool) -> None:
            while read(timeout) is None:
                pass
            raise KeyboardInterrupt

        future = connection.submit(extension(1))
        monkeypatch.setattr(connection._stream, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            future.result()
        monkeypatch.undo()
        with pytest.raises(ConnectionLostError) as lost, time_limit(5):
            connection.send(extension(2))
        assert isinstance(lost.value.__cause__, KeyboardInterrupt)


@pytest.mark.parametrize("timeout", [0.0, 1e-4])
def test_waits_that_time_out_leave_nothing_behind(timeout: float) -> None:
    answers = threading.Event()
    with ScriptedServer(held(answers)) as server, connect(server.address) as connection:
        future = connection.submit(extension(1))
        waiters = vars(future)["pending"].waiters
        before = len(waiters)
        reads = threading.Thread(target=connection.send, args=[extension(2)])
        reads.start()
        try:
            assert settles(lambda: connection._leader == reads.ident)
            for _ in range(100):
                assert not future.done()
                with pytest.raises(concurrent.futures.TimeoutError):
                    future.result(timeout)
            assert len(waiters) == before
        finally:
            answers.set()
        assert future.result() == extension(1)
        reads.join()


def test_a_future_cannot_be_cancelled(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address) as connection:
        future = connection.submit(extension(1))
        assert not future.cancel()
        assert future.result() == extension(1)


async def test_coroutines_may_await_the_futures(echo_server: ScriptedServer) -> None:
    requests = [extension(number) for number in range(1_000)]
    with connect(echo_server.address) as connection:
        futures = [asyncio.wrap_future(connection.submit(request)) for request in requests]
        assert await asyncio.gather(*futures) == requests


def test_a_server_error_fails_its_own_request_only(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        with pytest.raises(DmEnvRpcError) as caught:
            connection.send(dm_env_rpc_pb2.StepRequest())
        assert caught.value.code == code_pb2.FAILED_PRECONDITION
        assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
        assert connection.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name


@pytest.mark.parametrize("request_", [dm_env_rpc_pb2.Tensor(), "step", None])
def test_what_is_no_request_is_refused_before_it_is_sent(
    echo_server: ScriptedServer, request_: object
) -> None:
    with connect(echo_server.address) as connection:
        with pytest.raises(SpecError, match="request"):
            connection.send(request_)  # type: ignore[arg-type]
        assert connection.send(extension(1)) == extension(1)


# Doubt: each of these makes the connection unusable at the first sign.


def test_a_deadline_fails_everything_in_flight_with_the_first_cause() -> None:
    with ScriptedServer(silent) as server, connect(server.address) as connection:
        futures = [connection.submit(extension(number)) for number in range(5)]
        with pytest.raises(DeadlineExceededError) as first:
            connection.send(extension(9), timeout=0.2)
        for future in futures:
            error = future.exception(20)
            assert isinstance(error, ConnectionLostError)
            assert error.__cause__ is first.value


def test_a_deadline_passes_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT", 1)
    release = threading.Event()

    with ScriptedServer(held(release)) as server, connect(server.address) as connection:
        first = connection.start(extension(1))
        with pytest.raises(DeadlineExceededError):
            connection.send(extension(2), timeout=0.2)
        # Nothing was sent, so there is no doubt.
        assert connection.is_usable
        release.set()
        assert connection.wait(first) == extension(1)


LOST = ["UNAVAILABLE", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "CANCELLED"]


@pytest.mark.parametrize("code", [*LOST, "UNIMPLEMENTED"])
def test_a_status_at_the_end_of_the_stream_is_told(code: str) -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        yield from ()
        next(requests)
        context.abort(grpc.StatusCode[code], "the very reason")

    expected = pytest.raises((ConnectionLostError, ProtocolError), match="the very reason")
    with ScriptedServer(script) as server, connect(server.address) as connection:
        with expected as caught:
            connection.send(extension(1))
        if code in LOST:
            assert isinstance(caught.value, ConnectionLostError)
            assert caught.value.code == code


def test_a_closed_connection_says_so(echo_server: ScriptedServer) -> None:
    connection = connect(echo_server.address)
    connection.close()
    connection.close()
    with pytest.raises(ConnectionClosedError, match="was closed"):
        connection.send(extension(1))
    with pytest.raises(ConnectionClosedError):
        connection.submit(extension(1))


def test_closing_fails_what_is_in_flight() -> None:
    with (
        ScriptedServer(silent) as server,
        connect(server.address) as connection,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        future = connection.submit(extension(1))
        waiting = pool.submit(connection.send, extension(2))
        assert settles(lambda: connection.in_flight == 2)
        with time_limit(2):
            connection.close()
        for each in (future, waiting):
            assert isinstance(each.exception(20), ConnectionClosedError)


def test_reopen_opens_the_same_again(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address, request_timeout=5) as connection:
        connection.close()
        with connection.reopen() as again, again.reopen(timeout=5) as third:
            assert again.send(extension(1)) == extension(1)
            assert third.send(extension(2)) == extension(2)


def test_repr_tells_address_and_state(echo_server: ScriptedServer) -> None:
    connection = connect(echo_server.address)
    assert echo_server.address in repr(connection)
    connection.close()
    assert "unusable" in repr(connection)
