from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dm_env
import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, Limits
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from tests.bridges.gym_socket.peers import OK, RESET, Peer, scripted_peer, sized
from tests.support.alarms import Alarm
from tests.support.scripted import descriptor_count, settles
from tests.support.stopwatch import Stopwatch

GREETING = b"\x00\x02\x00\x00\x00ab"
STEP_1 = b"\x01\x00\x01\x00\x00\x001"
OBSERVED = b"\x00\x0a\x00\x00\x00[0.5,-1.0]"
INFO = b"\x02\x00\x00\x00{}"
STEPPED = OBSERVED + b"\x00\x00\x00\x00\x00\x00\xf8\x3f\x00" + INFO
DONE = STEPPED[: -len(INFO) - 1] + b"\x01"


DISCRETE = sized(b'{"type":"Discrete","n":2}')
BOX = sized(b'{"type":"Box","shape":[2],"low":[-1,-1],"high":[1,1e30]}')


def exchanging(*exchanges: tuple[bytes, bytes]) -> Callable[[Peer], None]:
    """Returns the script of a server: what it waits for each time, and answers."""

    def script(peer: Peer) -> None:
        for expected, answer in exchanges:
            peer.expect(expected)
            peer.send(answer)

    return script


def begin(peer: Peer, action: bytes = DISCRETE, observation: bytes = BOX) -> None:
    exchanging((GREETING, OK), (b"\x02\x00", action), (b"\x02\x01", observation))(peer)


@contextmanager
def environment_of(
    *exchanges: tuple[bytes, bytes] | Callable[[Peer], None],
    action: bytes = DISCRETE,
    observation: bytes = BOX,
    **kwargs: Any,
) -> Iterator[GymSocketEnvironment]:
    """Yields a client of a server that begins with two spaces and goes on with exchanges."""

    def whole(peer: Peer) -> None:
        begin(peer, action, observation)
        for each in exchanges:
            script = each if callable(each) else exchanging(each)
            script(peer)

    with (
        scripted_peer(whole) as address,
        GymSocketEnvironment(address, "ab", **kwargs) as environment,
    ):
        yield environment


def cannot_open(
    script: Callable[[Peer], None], error: type[Exception], message: str, **kwargs: Any
) -> Exception:
    with scripted_peer(script) as address, pytest.raises(error, match=message) as raised:
        GymSocketEnvironment(address, "ab", **kwargs)
    return raised.value


def assert_unusable(environment: GymSocketEnvironment, cause: type[BaseException]) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="open a new session") as raised:
            environment.reset()
        assert type(raised.value.__cause__) is cause
        assert environment.poisoned_by is raised.value.__cause__
    assert "unusable" in repr(environment)


def test_an_episode() -> None:
    with environment_of(
        (RESET, OBSERVED),
        (STEP_1, STEPPED),
        (STEP_1, DONE + sized(b'{"lives":0}')),
        (RESET, OBSERVED),
        (STEP_1, DONE + sized(b'{"TimeLimit.truncated":true}')),
    ) as environment:
        assert environment.action_space == spaces.Discrete(2)
        assert environment.observation_space == spaces.Box(
            np.array([-1.0, -1.0]), np.array([1.0, np.inf]), dtype=np.float64
        )
        assert environment.action_spec().num_values == 2
        assert environment.observation_spec().dtype == np.float64
        first = environment.step(0)  # Which nothing runs for, so the action means nothing.
        assert first.first()
        np.testing.assert_array_equal(first.observation, [0.5, -1.0])
        middle = environment.step(1)
        assert (middle.step_type, middle.reward, middle.discount) == (dm_env.StepType.MID, 1.5, 1)
        assert environment.info == {}
        last = environment.step(np.int32(1))
        assert (last.step_type, last.reward, last.discount) == (dm_env.StepType.LAST, 1.5, 0.0)
        assert environment.info == {"lives": 0}
        assert environment.step(1).first()
        assert environment.info == {}
        truncated = environment.step(1)
        assert (truncated.step_type, truncated.discount) == (dm_env.StepType.LAST, 1.0)


def test_frames_are_the_callers_own() -> None:
    box = sized(b'{"type":"Box","shape":[1,2],"low":[0,0],"high":[255,255]}')
    frame = b"\x01\x0e\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x07\xff"
    as_json = b"\x00\x0a\x00\x00\x00[[7, 255]]"
    answers = [(RESET, answer) for answer in (frame, frame, as_json)]
    with environment_of(*answers, observation=box) as environment:
        observations = [environment.reset().observation for _ in answers]
        for observation in observations:
            environment.observation_spec().validate(observation)
            np.testing.assert_array_equal(observation, [[7, 255]])
        observations[0][:] = 0
        np.testing.assert_array_equal(observations[1], [[7, 255]])


def test_true_and_false_are_numbers_where_a_space_is_discrete() -> None:
    """As in the observations of gym's Blackjack, and of nothing whose values are measured."""
    discrete = b'{"type":"Discrete","n":32}'
    several = b'{"type":"MultiDiscrete","low":[0,0],"high":[1,1]}'
    box = b'{"type":"Box","shape":[],"low":[0],"high":[1]}'
    parts = b",".join((discrete, discrete, several, box))
    with environment_of(
        (RESET, b"\x00" + sized(b"[6,false,[true,false],0.5]")),
        (RESET, b"\x00" + sized(b"[6,false,[1,0],true]")),
        observation=sized(b'{"type":"Tuple","subspaces":[' + parts + b"]}"),
    ) as environment:
        observation = environment.reset().observation
        for spec, part in zip(environment.observation_spec(), observation, strict=True):
            spec.validate(part)
        assert [part.tolist() for part in observation] == [6, 0, [1, 0], 0.5]
        with pytest.raises(ProtocolError, match=r"observation\.3: True is boolean"):
            environment.reset()


def test_dtypes_may_be_chosen() -> None:
    with environment_of(
        (RESET, OBSERVED),
        (b"\x01\x00\x05\x00\x00\x00[0.5]", STEPPED),
        action=sized(b'{"type":"Box","shape":[1],"low":[-1],"high":[1]}'),
        observation_dtype=np.float32,
        action_dtype="float32",
    ) as environment:
        assert environment.reset().observation.dtype == np.float32
        assert environment.action_spec().dtype == np.float32
        environment.step(np.array([0.5]))


def test_actions_are_checked_before_anything_is_sent() -> None:
    with environment_of((RESET, OBSERVED), (STEP_1, STEPPED)) as environment:
        environment.reset()
        for action in (2, -1, 0.5, [0, 1], None, "1"):
            with pytest.raises(SpecError, match="the action"):
                environment.step(action)
        assert environment.step(1).mid()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"", DeadlineExceededError, "in time"),
        (OBSERVED[:-1], DeadlineExceededError, "in time"),
        (b"\x02" + OBSERVED[1:], ProtocolError, "observation type 2"),
        (b"\x01\xff\xff\xff\xff", ProtocolError, "4294967295 bytes"),
        (b"\x00\x05\x00\x00\x00[0.5]", ProtocolError, r"its own space: the observation: has shape"),
        (b"\x00\x02\x00\x00\x00[,", ProtocolError, "expected UTF-8 JSON"),
    ],
)
def test_doubt_about_an_answer_is_the_end(
    answer: bytes, error: type[Exception], message: str
) -> None:
    timeout = 0.3 if error is DeadlineExceededError else 30.0
    with environment_of((RESET, answer), request_timeout=timeout) as environment:
        start = Stopwatch()
        with pytest.raises(error, match=message):
            environment.reset()
        assert start.within(1.5)
        assert_unusable(environment, error)


def test_dripping_bytes_do_not_move_the_deadline() -> None:
    def script(peer: Peer) -> None:
        peer.expect(RESET)
        with contextlib.suppress(OSError):
            for byte in OBSERVED:
                time.sleep(0.1)  # Often enough that no wait for a byte is as long as the timeout.
                peer.send(bytes([byte]))

    with environment_of(script, request_timeout=0.3) as environment:
        start = Stopwatch()
        with pytest.raises(DeadlineExceededError):
            environment.reset()
        assert start.within(1.0)


def test_an_info_is_an_object() -> None:
    with environment_of((RESET, OBSERVED), (STEP_1, DONE + sized(b"[]"))) as environment:
        environment.reset()
        with pytest.raises(ProtocolError, match="info is a JSON object"):
            environment.step(1)
        assert_unusable(environment, ProtocolError)


def test_an_answer_that_nothing_asked_for_is_the_end() -> None:
    with environment_of((RESET, OBSERVED * 2)) as environment:
        environment.reset()
        assert settles(environment._connection._stream.has_unread)
        with pytest.raises(ProtocolError, match="an unrequested answer"):
            environment.reset()
        assert_unusable(environment, ProtocolError)


@pytest.mark.parametrize("expected", [RESET, b""], ids=["in a request", "between requests"])
def test_a_server_that_ends_the_connection(expected: bytes) -> None:
    with environment_of((expected, b""), lambda peer: peer.close()) as environment:
        if not expected:
            assert settles(environment._connection._stream.has_unread)
        with pytest.raises(ConnectionLostError, match="ended the connection"):
            environment.reset()
        assert_unusable(environment, ConnectionLostError)


def test_an_interrupted_wait_is_the_end() -> None:
    with environment_of((RESET, b"")) as environment:
        with pytest.raises(KeyboardInterrupt), Alarm(0.2):
            environment.reset()
        assert_unusable(environment, KeyboardInterrupt)


def test_an_interrupt_while_an_error_is_handled_is_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with environment_of((RESET, b"\x02" + OBSERVED[1:])) as environment:
        with monkeypatch.context() as patch:
            patch.setattr(type(environment._connection), "poison", interrupted)
            with pytest.raises(KeyboardInterrupt):
                environment.reset()
        assert_unusable(environment, ConnectionLostError)


def test_close_frees_a_thread_that_waits() -> None:
    asked = threading.Event()
    with (
        ThreadPoolExecutor() as executor,
        environment_of((RESET, b""), lambda peer: asked.set()) as environment,
    ):
        waiting = executor.submit(environment.reset)
        assert asked.wait(10)
        start = Stopwatch()
        environment.close()
        environment.close()
        with pytest.raises(ConnectionClosedError):
            waiting.result(20)
        assert start.within(1.0)
        with pytest.raises(ConnectionClosedError):
            environment.reset()


def test_a_forked_child_cannot_use_the_session() -> None:
    with environment_of((RESET, OBSERVED)) as environment:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                environment.reset()
            except BaseException as error:
                os.write(write_end, type(error).__name__.encode() + b": " + str(error).encode())
            environment.close()
            os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as said:
            message = said.read()
        assert os.waitpid(child, 0)[1] == 0
        assert message.startswith(b"ConnectionLostError")
        assert b"forked child" in message
        assert environment.reset().first()


def test_a_refused_name() -> None:
    refusal = exchanging((GREETING, sized(b"no environment ab")))
    refused = cannot_open(refusal, DmEnvRpcError, "no environment ab")
    assert isinstance(refused, DmEnvRpcError)
    assert refused.code_name == "UNKNOWN"


def test_a_session_without_an_environment() -> None:
    script = exchanging(
        (b"\x00\x00\x00\x00\x00", OK),
        (b"\x06\x01\x00\x00\x00m\x01\x00\x00\x00k\x00\x00\x00\x00", OK),
    )
    with scripted_peer(script) as address, GymSocketEnvironment(address, "") as environment:
        environment.upload("m", "k")
        acts: list[Callable[[], Any]] = [
            environment.reset,
            lambda: environment.step(0),
            environment.action_spec,
            lambda: environment.observation_space,
            environment.sample_action,
            lambda: environment.monitor("m"),
        ]
        for act in acts:
            with pytest.raises(SpecError, match="has no environment"):
                act()


@pytest.mark.parametrize(
    ("observation", "error", "message"),
    [
        (b'{"type":"Dict"}', SpecError, "observation space: the server's space is of type 'Dict'"),
        (b'{"type":"Box"}', ProtocolError, "the observation space: Box"),
        (b"nothing", ProtocolError, "the space: expected UTF-8 JSON"),
    ],
)
def test_spaces_that_cannot_be(observation: bytes, error: type[Exception], message: str) -> None:
    cannot_open(lambda peer: begin(peer, observation=sized(observation)), error, message)


@pytest.mark.parametrize(
    ("address", "kwargs", "error", "message"),
    [
        ("192.0.2.1:5001", {}, SpecError, "insecure=True"),
        ("localhost:1", {"env_name": "n" * 257}, SpecError, "more than 256 bytes"),
        ("localhost:1", {}, ConnectionLostError, "could not connect to localhost:1: .*refused"),
        ("[::1]:1", {}, ConnectionLostError, r"could not connect to \[::1\]:1"),
    ],
)
def test_connections_that_cannot_be(
    address: str, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GymSocketEnvironment(address, **{"env_name": "ab", **kwargs})


def test_limits_are_the_callers_to_set() -> None:
    script = exchanging((GREETING, OK), (b"\x02\x00", DISCRETE))
    text = "has a length of 25 bytes; at most 10"
    cannot_open(script, ProtocolError, text, limits=Limits(space=10))


def test_environments_leave_no_descriptors_behind() -> None:
    with scripted_peer(begin) as address:
        GymSocketEnvironment(address, "ab").close()
        before = descriptor_count()
        for _ in range(100):
            GymSocketEnvironment(address, "ab").close()
            with pytest.raises(ConnectionLostError):
                GymSocketEnvironment("localhost:1", "ab")
        GymSocketEnvironment(address, "ab")  # Forgotten without close().
        assert descriptor_count() <= before + 1
