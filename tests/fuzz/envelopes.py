"""Requests and answers: a payload, an error Status or one exception of the package.

Step answers are read in two ways, which have to agree: as `StepCodec` does it, and through
protobuf. Requests go to a session of the server, one after another, whose answers have to fit.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import dm_env
import numpy as np
from dm_env import specs
from google.protobuf import any_pb2, message
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import (
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecManager,
    dm_env_rpc_pb2,
    pack_tensor,
    properties_pb2,
)
from dm_env_rpc_client.protocol.envelopes import decode_response, encode_request
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.step_layout import StepAnswer, UnreadStep
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
)
from tests.fuzz.tensors import is_large
from tests.fuzz.wire import BLOCK, changed, field, taken_apart
from tests.tensors.strategies import DATA_TYPES

pb = dm_env_rpc_pb2

ANSWER, STEP, REQUESTS = 0, 1, 2

SPECS = pb.ActionObservationSpecs(
    actions={1: pb.TensorSpec(name="a", dtype=pb.INT32)},
    observations={2: pb.TensorSpec(name="o", dtype=pb.STRING, shape=[-1])},
)


def _any(number: int) -> any_pb2.Any:
    return any_pb2.Any(type_url="tests/echo", value=bytes(number))


def _property_request() -> any_pb2.Any:
    request = any_pb2.Any()
    request.Pack(properties_pb2.PropertyRequest(list_property=properties_pb2.ListPropertyRequest()))
    return request


ANSWERS: dict[str, Any] = {
    "create_world": pb.CreateWorldResponse(world_name="w"),
    "join_world": pb.JoinWorldResponse(specs=SPECS),
    "step": pb.StepResponse(state=pb.RUNNING, observations={2: pack_tensor(["x", "yz"])}),
    "reset": pb.ResetResponse(specs=SPECS),
    "reset_world": pb.ResetWorldResponse(),
    "leave_world": pb.LeaveWorldResponse(),
    "destroy_world": pb.DestroyWorldResponse(),
    "extension": _any(3),
}
FIELDS = sorted(ANSWERS)


class Case(NamedTuple):
    """A codec, and a message that it reads."""

    codec: StepCodec
    message: bytes


@functools.cache
def cases() -> list[Case]:
    """Codecs of several sets of observations, in every dtype, with an answer for each."""
    rng = np.random.default_rng(0)
    sets: list[dict[int, Any]] = [
        {1: np.array([[1, 2], [3, 4]], np.float32), 2: np.array([True, False]), 300: "text"},
        {1: np.arange(5, dtype=np.uint8), 2: np.int64(-7), 1 << 40: np.float64(0.5)},
        {},
    ]
    for name in DATA_TYPES:
        sets.append({7: np.ones(3, name), 9: np.zeros((), name), 11: np.ones((0, 2), name)})
        sets.append({5: rng.integers(0, 2, (70,)).astype(name)})
    found = []
    for values in sets:
        made = {
            uid: pb.TensorSpec(
                name=f"n{uid}",
                shape=[-1] if uid == 5 else np.shape(value),
                dtype=DATA_TYPES.get(np.asarray(value).dtype.name, pb.STRING),
            )
            for uid, value in values.items()
        }
        observations = SpecManager(made, "observation")
        codec = StepCodec(SpecManager({}, "action"), observations, sorted(made))
        answer = pb.StepResponse(
            state=pb.RUNNING,
            observations={uid: pack_tensor(value) for uid, value in values.items()},
        )
        found.append(Case(codec, pb.EnvironmentResponse(step=answer).SerializeToString()))
    return found


class Fixed(dm_env.Environment):
    """Takes any settings and actions, and never fails."""

    def __init__(self, **settings: Any):
        self._step = 0

    def action_spec(self) -> dict[str, Any]:
        return {
            "torque": specs.BoundedArray((2,), np.float32, -1, 1, "torque"),
            "mode": specs.DiscreteArray(4, name="mode"),
            "say": specs.StringArray((), name="say"),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {"heard": specs.StringArray((), name="heard"), "at": specs.Array((2,), np.float32)}

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return dm_env.restart(self._observe(""))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._step += 1
        observation = self._observe(str(action["say"]))
        if self._step % 3 == 0:
            return dm_env.termination(1.0, observation)
        return dm_env.transition(0.5, observation)

    def _observe(self, heard: str) -> dict[str, Any]:
        return {"heard": np.array(heard, object), "at": np.ones(2, np.float32)}


def _conversation() -> list[Any]:
    """Requests that `Fixed` answers, in this order."""
    actions = {
        1: pack_tensor(np.array([0.5, -0.5], np.float32)),
        2: pack_tensor(np.int32(1)),
        3: pack_tensor("hello"),
    }
    step = pb.StepRequest(actions=actions, requested_observations=[1, 2])
    name = "world-1"
    return [
        pb.CreateWorldRequest(settings={"size": pack_tensor(3), "a.b": pack_tensor("x")}),
        pb.JoinWorldRequest(world_name=name),
        step,
        step,
        pb.ResetRequest(settings={"size": pack_tensor(4)}),
        step,
        pb.ResetWorldRequest(world_name=name),
        _property_request(),
        pb.LeaveWorldRequest(),
        pb.DestroyWorldRequest(world_name=name),
    ]


@functools.cache
def _conversation_messages() -> list[bytes]:
    return [encode_request(request).message for request in _conversation()]


@functools.cache
def _answer_messages() -> list[bytes]:
    answers: list[Any] = [pb.EnvironmentResponse(**{name: ANSWERS[name]}) for name in FIELDS]
    error = status_pb2.Status(code=5, message="no", details=[_any(2)])
    answers.append(pb.EnvironmentResponse(error=error))
    return [answer.SerializeToString() for answer in answers] + [each.message for each in cases()]


def generate(rng: random.Random) -> bytes:
    """A kind; which field or codec it is for; and a message, or several."""
    kind = rng.choice([ANSWER, STEP, STEP, REQUESTS])
    if kind == REQUESTS:
        messages = _conversation_messages()
        requests = [
            changed(each, rng, messages) if rng.random() < 0.2 else each
            for each in messages
            if rng.random() < 0.95
        ]
        if rng.random() < 0.2:
            rng.shuffle(requests)
        return bytes([kind, 0]) + b"".join(field(1, BLOCK, each) for each in requests)
    others = _answer_messages()
    if kind == STEP:
        which = rng.randrange(len(cases()))
        original = cases()[which].message
    else:
        which = rng.randrange(len(FIELDS))
        original = rng.choice([others[which], rng.choice(others)])
    return bytes([kind, which]) + changed(original, rng, others)


def check(contents: bytes) -> str:
    """Reads what `generate` makes, and returns what became of it."""
    kind, which, rest = *(contents + b"\0\0")[:2], contents[2:]
    if kind % 3 == ANSWER:
        return _check_answer(FIELDS[which % len(FIELDS)], rest)
    if kind % 3 == STEP:
        return _check_step(cases()[which % len(cases())], rest)
    return _check_requests([value for _, _, value in taken_apart(rest) or []])


def _tensors(parent: message.Message) -> Iterator[Any]:
    if isinstance(parent, pb.Tensor):
        yield parent
        return
    for described, value in parent.ListFields():
        if described.message_type is None:
            continue
        one_or_more = [value] if isinstance(value, message.Message) else value
        for each in one_or_more.values() if hasattr(one_or_more, "values") else one_or_more:
            if isinstance(each, message.Message):
                yield from _tensors(each)


def _holds_large(kind: Any, contents: bytes) -> bool:
    try:
        parsed = kind.FromString(contents)
    except (DecodeError, ValueError):
        return False
    return any(is_large(tensor.shape) for tensor in _tensors(parsed))


def _check_answer(name: str, contents: bytes) -> str:
    try:
        payload = decode_response(contents, name)
    except DmEnvRpcError:
        return "error of the server"
    except ProtocolError:
        return "refused"
    assert type(payload) is type(ANSWERS[name])
    return "payload"


def _outcome(call: Callable[[], StepAnswer]) -> Any:
    """What a call returns, by its bits, or the kind of error that it raises."""
    try:
        answer = call()
    except DmEnvRpcClientError as error:
        return type(error)
    return answer.state, {
        name: (np.asarray(value).dtype, np.shape(value), repr(np.asarray(value).tolist()))
        for name, value in answer.observations.items()
    }


def _check_step(case: Case, contents: bytes) -> str:
    if _holds_large(pb.EnvironmentResponse, contents):
        return "large, not tried"
    is_short = False

    def decode() -> StepAnswer:
        nonlocal is_short
        answer = case.codec.decode(memoryview(bytearray(contents)))
        is_short = isinstance(answer, StepAnswer | UnreadStep)
        return case.codec.interpret(answer)

    found = _outcome(decode)
    expected = _outcome(lambda: case.codec.interpret(decode_response(contents, "step")))
    assert found == expected, (found, expected)
    if isinstance(found, tuple):
        return "step, read the short way" if is_short else "step, read through protobuf"
    return "refused"


_NO_LISTENER = SimpleNamespace(
    address="localhost:1",
    abort=lambda: None,
    wait=lambda timeout=None: True,
    stop=lambda grace: None,
)
"""In the place of a listener: nothing listens."""


def _serve() -> tuple[Server, ServerStream]:
    opened: list[OpenStream] = []

    def listener(options: ListenerOptions, *_: Any) -> Any:
        opened.append(options.open_stream)
        return _NO_LISTENER

    with mock.patch("dm_env_rpc_client.server.serving.open_listener", listener):
        server = serve(Fixed, max_worlds=4)
    return server, opened[0](Peer("ipv4:192.0.2.1:1"))


def _check_requests(requests: list[bytes]) -> str:
    if any(_holds_large(pb.EnvironmentRequest, each) for each in requests):
        return "large, not tried"
    server, stream = _serve()
    refused = 0
    try:
        for contents in requests:
            try:
                answer = pb.EnvironmentResponse.FromString(stream.answer(contents))
            except StreamStatusError as error:
                if error.code != "INVALID_ARGUMENT":
                    raise
                return "the stream ended"
            asked = pb.EnvironmentRequest.FromString(contents).WhichOneof("payload")
            answered = answer.WhichOneof("payload")
            if answered == "error":
                assert answer.error.code not in (code_pb2.OK, code_pb2.INTERNAL), answer
                refused += 1
            else:
                assert answered == asked, (answered, asked)
    finally:
        stream.close()
        server.stop()
    assert server.errors == []
    return "some requests refused" if refused else "all requests answered"
