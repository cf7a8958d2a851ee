"""Connection: every answer goes to its own request, or nobody gets any more."""

from __future__ import annotations

import concurrent.futures
import pickle
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

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
from tests.scripted import extension, time_limit


def test_send_returns_the_payload_of_the_answer(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address) as connection:
        assert connection.send(extension(7)) == extension(7)


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


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_8_threads_with_many_requests_each_get_their_own_answers(
    echo_server: ScriptedServer, count: int
) -> None:
    wrong: list[int] = []

    def work(thread: int) -> None:
        numbers = range(thread * count, (thread + 1) * count)
        wrong.extend(n for n in numbers if connection.send(extension(n)) != extension(n))

    with connect(echo_server.address, request_timeout=60) as connection:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("depth", [1, 16, 256])
def test_pipelined_requests_get_their_own_answers_errors_among_them(depth: int) -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            if int(request.extension.value) % 10 == 3:
                text = request.extension.value.decode()
                yield Response(error=status_pb2.Status(code=code_pb2.ABORTED, message=text))
            else:
                yield Response(extension=request.extension)

    def check(number: int, future: concurrent.futures.Future[any_pb2.Any]) -> None:
        if number % 10 == 3:
            with pytest.raises(DmEnvRpcError) as caught:
                future.result()
            assert caught.value.message == str(number)
        else:
            assert future.result() == extension(number)

    with ScriptedServer(script) as server, connect(server.address) as connection:
        futures = []
        for number in range(2_000):
            futures.append(connection.submit(extension(number)))
            if number >= depth:
                check(number - depth, futures[number - depth])
        for number in range(2_000 - depth, 2_000):
            check(number, futures[number])


def test_requests_that_their_thread_waits_for_mix_with_futures(
    echo_server: ScriptedServer,
) -> None:
    with connect(echo_server.address) as connection:
        for number in range(0, 300, 3):
            pending = connection.start(extension(number))
            future = connection.submit(extension(number + 1))
            assert connection.send(extension(number + 2)) == extension(number + 2)
            assert connection.wait(pending) == extension(number)
            assert future.result() == extension(number + 1)


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
        assert answered.result(5) == extension(2)


def test_a_future_cannot_be_cancelled(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address) as connection:
        future = connection.submit(extension(1))
        assert not future.cancel()
        assert future.result() == extension(1)


def test_coroutines_may_await_the_futures(echo_server: ScriptedServer) -> None:
    import asyncio

    async def gather(connection: Connection) -> list[any_pb2.Any]:
        requests = [extension(number) for number in range(1_000)]
        futures = [asyncio.wrap_future(connection.submit(request)) for request in requests]
        return list(await asyncio.gather(*futures))

    with connect(echo_server.address) as connection:
        assert asyncio.run(gather(connection)) == [extension(number) for number in range(1_000)]


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


def _twice(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    for request in requests:
        yield Response(extension=request.extension)
        yield Response(extension=request.extension)


def _wrong_type(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    for _ in requests:
        yield Response(leave_world=dm_env_rpc_pb2.LeaveWorldResponse())


def _empty(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    for _ in requests:
        yield Response()


def _garbage(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[bytes]:
    for _ in requests:
        yield b"\xff\xff\xff"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (_wrong_type, "holds leave_world; expected extension"),
        (_empty, "holds no payload"),
        (_garbage, "not an EnvironmentResponse"),
    ],
)
def test_an_answer_of_another_kind_poisons_the_connection(script: object, text: str) -> None:
    with ScriptedServer(script) as server, connect(server.address) as connection:  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match=text) as first:
            connection.send(extension(1))
        assert not connection.is_usable
        with pytest.raises(ConnectionLostError, match="which answer belongs") as later:
            connection.send(extension(2))
        assert later.value.__cause__ is first.value


def test_a_duplicate_answer_is_noticed_before_the_next_request_is_sent() -> None:
    received = []

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            received.append(request)
            yield Response(extension=request.extension)
            yield Response(extension=request.extension)

    with ScriptedServer(script) as server, connect(server.address) as connection:
        assert connection.send(extension(1)) == extension(1)
        deadline = time.monotonic() + 5
        while not connection._pipeline._stream.has_unread() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ProtocolError, match="while no request was pending"):
            connection.send(extension(2))
        assert len(received) == 1
        with pytest.raises(ConnectionLostError):
            connection.send(extension(3))


def test_duplicate_answers_in_a_pipeline_reach_nobody_else() -> None:
    """The second answer to 0 is in the place of 1's and shows by its kind at the latest."""

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            kind = request.WhichOneof("payload")
            answer = Response()
            getattr(answer, str(kind)).SetInParent()
            yield answer
            yield answer

    with ScriptedServer(script) as server, connect(server.address) as connection:
        first = connection.start(dm_env_rpc_pb2.LeaveWorldRequest())
        second = connection.start(dm_env_rpc_pb2.StepRequest())
        third = connection.start(dm_env_rpc_pb2.StepRequest())
        connection.wait(first)
        with pytest.raises(ProtocolError):
            connection.wait(second)
        with pytest.raises(ConnectionLostError):
            connection.wait(third)


def test_a_missing_answer_is_a_missed_deadline() -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            if request.extension != extension(2):
                yield Response(extension=request.extension)

    with (
        ScriptedServer(script) as server,
        connect(server.address, request_timeout=0.5) as connection,
    ):
        assert connection.send(extension(1)) == extension(1)
        with time_limit(0.7), pytest.raises(DeadlineExceededError, match="extension request"):
            connection.send(extension(2))
        with pytest.raises(ConnectionLostError) as later:
            connection.send(extension(3))
        assert isinstance(later.value.__cause__, DeadlineExceededError)


def test_a_deadline_fails_everything_in_flight_with_the_first_cause() -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for _ in requests:
            pass
        yield from ()

    with ScriptedServer(script) as server, connect(server.address) as connection:
        futures = [connection.submit(extension(number)) for number in range(5)]
        with pytest.raises(DeadlineExceededError) as first:
            connection.send(extension(9), timeout=0.2)
        for future in futures:
            error = future.exception(1)
            assert isinstance(error, ConnectionLostError)
            assert error.__cause__ is first.value


def test_a_deadline_passes_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT", 1)
    release = threading.Event()

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        release.wait(10)
        yield from echo(requests, context)

    with ScriptedServer(script) as server, connect(server.address) as connection:
        first = connection.start(extension(1))
        with pytest.raises(DeadlineExceededError):
            connection.send(extension(2), timeout=0.2)
        # Nothing was sent, so there is no doubt.
        assert connection.is_usable
        release.set()
        assert connection.wait(first) == extension(1)


def test_a_server_that_ends_the_stream_is_a_lost_connection() -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response(extension=next(requests).extension)

    with ScriptedServer(script) as server, connect(server.address) as connection:
        assert connection.send(extension(1)) == extension(1)
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="ended the stream"):
                connection.send(extension(2))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, ConnectionLostError),
        (grpc.StatusCode.UNAUTHENTICATED, ConnectionLostError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ConnectionLostError),
        (grpc.StatusCode.CANCELLED, ConnectionLostError),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError),
    ],
)
def test_a_status_at_the_end_of_the_stream_is_told(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        yield from ()
        next(requests)
        context.abort(code, "the very reason")

    with ScriptedServer(script) as server, connect(server.address) as connection:
        with pytest.raises((kind, ConnectionLostError), match="the very reason") as caught:
            connection.send(extension(1))
        if kind is ConnectionLostError:
            assert isinstance(caught.value, ConnectionLostError)
            assert caught.value.code == code.name


def test_a_closed_connection_says_so(echo_server: ScriptedServer) -> None:
    connection = connect(echo_server.address)
    connection.close()
    connection.close()
    with pytest.raises(ConnectionClosedError, match="was closed"):
        connection.send(extension(1))
    with pytest.raises(ConnectionClosedError):
        connection.submit(extension(1))


def test_closing_fails_what_is_in_flight() -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for _ in requests:
            pass
        yield from ()

    with ScriptedServer(script) as server, connect(server.address) as connection:
        future = connection.submit(extension(1))
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                connection.send(extension(2))
            except ConnectionClosedError as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.1)
        with time_limit(2):
            connection.close()
        waiter.join(2)
        assert isinstance(future.exception(1), ConnectionClosedError)
        assert len(errors) == 1


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
