"""What the server in one file does with requests, header blocks and health checks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import hpack
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2, wrappers_pb2
from google.rpc import code_pb2
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    pack_tensor,
    reset_world,
    unpack_tensor,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import (
    Message,
    Server,
    _HeaderDecoder,
    _unhuffman,
    _Violation,
)
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.services import CHECK
from tests.server.one_thread import Level
from tests.support.environments import Echo
from tests.support.scripted import settles
from tests.transports.test_health_check import assert_is_watched, assert_serves
from tests.travelling.environments.of_dm_env import ENDLESS, Timed


def _no_device() -> int:
    raise ValueError("no device")


class WithProperty(Echo):
    """Has a property whose getter fails."""

    properties: dict[str, Any] = {"x": (_no_device, lambda value: None)}  # noqa: RUF012


@pytest.fixture
def loaded_server() -> Any:
    def loaded(ballast: Any = None) -> WithProperty:
        return WithProperty()

    with Server(loaded) as running:
        yield running


def test_a_getter_that_fails_is_no_fault_of_its_reader_or_writer(loaded_server: Any) -> None:
    with make(loaded_server.address) as env:
        extension = PropertiesExtension(env.connection)
        asks: list[Callable[[], Any]] = [
            lambda: extension.read("x"), lambda: extension.write("x", 1),
        ]  # fmt: skip
        for number, ask in enumerate(asks, 1):
            with pytest.raises(DmEnvRpcError, match="no device") as caught:
                ask()
            assert caught.value.code == code_pb2.INTERNAL
            assert len(loaded_server.errors) == number


def test_the_settings_of_all_worlds_are_limited_together(
    loaded_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_file, "MAX_HELD_BYTES", 200_000)
    large = {"ballast": np.zeros(150_000, np.uint8)}
    with make(loaded_server.address, large):
        with pytest.raises(DmEnvRpcError, match="settings of all worlds would take") as caught:
            make(loaded_server.address, large)
        assert caught.value.code == code_pb2.RESOURCE_EXHAUSTED
        make(loaded_server.address, {"ballast": np.zeros(10_000, np.uint8)}).close()
    # The room of a world that is gone is free.
    make(loaded_server.address, large).close()


_SECONDS = wrappers_pb2.DoubleValue(value=1.5)
_ANY = any_pb2.Any()
_ANY.Pack(_SECONDS)
_MESSAGE = Message(_ANY.type_url, _ANY.value)


def _messages(*messages: Message) -> Any:
    array = np.empty(len(messages), object)
    for index, message in enumerate(messages):
        array[index] = message
    return array


VALUES: dict[str, tuple[Any, type, Any]] = {
    "bool": (True, np.bool_, True),
    "int16": (np.int16(-3), np.int32, -3),
    "int": (1 << 40, np.int64, 1 << 40),
    "float16": (np.float16(0.5), np.float32, 0.5),
    "float": (0.1, np.float64, 0.1),
    "array": (np.arange(6, dtype=np.uint8).reshape(2, 3), np.uint8, None),
    "string": ("näm", str, "näm"),
    "strings": (np.array(["a", "bc"]), str, None),
    "message": (_MESSAGE, object, _ANY),
    "messages": (_messages(_MESSAGE, _MESSAGE), object, [_ANY, _ANY]),
}
"""What a getter returns, the dtype of its spec, and what a client reads; None for the same."""


class _Valued(Echo):
    properties: dict[str, Any] = {  # noqa: RUF012
        name: lambda value=value: value for name, (value, _, _) in VALUES.items()
    }


@pytest.fixture(scope="module")
def properties() -> Iterator[PropertiesExtension]:
    with Server(_Valued) as server, make(server.address) as env:
        yield PropertiesExtension(env.connection)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_dtype_is_read_and_its_spec_fits(
    properties: PropertiesExtension, name: str
) -> None:
    value, dtype, read = VALUES[name]
    found, expected = properties.read(name), value if read is None else read
    np.testing.assert_array_equal(found, expected)
    (spec,) = (found.spec for found in properties.list() if found.key == name)
    assert spec is not None
    assert isinstance(spec, specs.StringArray) == (dtype is str)
    assert dtype is str or spec.dtype == dtype
    assert tuple(spec.shape) == np.shape(found) == np.shape(expected)


def sized(size: int = 1) -> Timed:
    """Observes how many steps it has taken, in as many elements as a setting says."""
    spec = specs.Array((size,), np.int64, "count")
    action = specs.DiscreteArray(2, name="a")
    return Timed(0, ENDLESS, spec, lambda env: np.full(size, env.steps), action)


@pytest.fixture(params=[serve, one_file.serve], ids=["serve", "one file"])
def host(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return lambda kind: request.param(kind, "localhost:0")


def test_a_world_without_an_agent_takes_settings_that_change_its_specs(host: Any) -> None:
    with host(sized) as server, connect(server.address) as connection:
        name = create_world(connection, {"size": 2})
        reset_world(connection, name, {"size": 3})
        with join_world(connection, name) as env:
            (spec,) = env.observation_spec().values()
            assert spec.shape == (3,)
            assert env.reset().first()
            # Settings of another connection may not change the specs of a joined agent.
            with connect(server.address) as other, pytest.raises(DmEnvRpcError, match="own Reset"):
                reset_world(other, name, {"size": 4})
            assert env.step({"action": 1}).mid()
        destroy_world(connection, name)


def test_a_reset_of_the_agent_itself_ends_an_earlier_one_of_another(host: Any) -> None:
    with host(sized) as server, connect(server.address) as connection:
        name = create_world(connection, {})
        with connect(server.address) as other, join_world(connection, name) as env:
            env.reset()
            assert env.step({"action": 1}).mid()
            # Pending, as the agent is in a sequence: it is told by its next step, or by its own
            # reset of the world.
            asked = other.submit(dm_env_rpc_pb2.ResetWorldRequest(world_name=name))
            if isinstance(server, one_file.Server):
                assert settles(lambda: server.worlds[name].is_interrupted)
            reset_world(connection, name)
            asked.result(20)
            timestep = env.step({"action": 1})
            assert timestep.first()
            (count,) = timestep.observation.values()
            assert count.tolist() == [0]
            assert env.step({"action": 1}).mid()
        destroy_world(connection, name)


class Limited:
    """Takes actions up to a limit, which is a setting of resets."""

    reset_settings = ("limit",)

    def __init__(self, limit: int = 5):
        self._limit = limit

    def configure(self, settings: dict[str, Any]) -> None:
        self._limit = settings["limit"]

    def action_spec(self) -> Any:
        return one_file.BoundedArray((), np.int32, 0, self._limit)

    def observation_spec(self) -> Any:
        return {"action": one_file.Array((), np.int32)}

    def reset(self) -> Any:
        return one_file.TimeStep(one_file.FIRST, None, None, {"action": np.int32(-1)})

    def step(self, action: Any) -> Any:
        return one_file.TimeStep(one_file.MID, 1.0, 1.0, {"action": action})


def step(connection: Connection, action: int) -> int:
    actions = {1: pack_tensor(np.int32(action))}
    request = dm_env_rpc_pb2.StepRequest(actions=actions, requested_observations=[1])
    return int(unpack_tensor(connection.send(request).observations[1]))


def test_a_step_that_was_read_before_is_read_again_where_the_specs_are_others() -> None:
    with one_file.serve(Limited, "localhost:0") as server, connect(server.address) as connection:
        for limit in (5, 3, 5):
            world = create_world(connection, {"limit": limit})
            with join_world(connection, world) as env:
                env.reset()
                assert [step(connection, each) for each in (3, 2, 3)] == [3, 2, 3]
                if limit == 5:
                    assert step(connection, 4) == 4
                    env.reset({"limit": 3})
                with pytest.raises(DmEnvRpcError, match=r"4, outside its bounds \[0, 3\]"):
                    step(connection, 4)
            with pytest.raises(DmEnvRpcError, match="a step request is not allowed"):
                step(connection, 3)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i4", "i8", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (300,)], ids=str)
def test_a_tensor_is_the_same_read_the_short_and_the_long_way(
    dtype: str, shape: tuple[int, ...]
) -> None:
    chance = random.Random(5)
    spec = one_file.Array(shape, dtype)
    short, long = (one_file._Field(1, "a", spec, "action") for _ in range(2))
    long._payload = b""
    written = one_file._write_tensor(short.kind, np.ones(shape, dtype))
    assert (short._read_block(written) is not None) == (dtype in ("f4", "f8", "i1", "u1"))
    read = [0, 0]
    for _ in range(600):
        mutated = bytearray(written)
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(mutated))
            mutated[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            mutated = mutated or bytearray(b"\x00")
        found: list[tuple[Any, ...]] = []
        for field in (short, long):
            try:
                value = field.read(bytes(mutated), dict(one_file.LIMITS))
                found.append((value.dtype, value.shape, value.tobytes()))
                assert value.shape == () or value.flags.writeable
            except (one_file.Refusal, one_file._Malformed) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1], bytes(mutated)
        read[len(found[0]) == 3] += 1
    assert all(read)


class Made(Level):
    """A level whose constructor counts, too."""

    made: list[Made] = []  # noqa: RUF012  # for the test that has it emptied

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds = 0.002
        self.threads.note("constructor")
        self.made.append(self)


def test_two_that_have_joined_the_world_of_the_other() -> None:
    """Each thread waits for the other one, and does meanwhile what that asks."""
    Made.made.clear()
    with one_file.serve(Made) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server.address)) for _ in range(2)]
        names = [create_world(each) for each in connections]
        envs = [join_world(*pair) for pair in zip(connections, reversed(names), strict=True)]
        for _ in range(50):
            for future in [env.submit_step({"go": 1}) for env in envs]:
                future.result()
        for env in envs:
            env.close()
    assert len(Made.made) == 2
    for level in Made.made:
        level.threads.the_one("constructor", "step", "close")


def test_blocks_of_a_connection_are_decoded_as_hpack_does() -> None:
    chance = random.Random(1)
    encoder, decoder = hpack.Encoder(), _HeaderDecoder()
    names = [b":path", b"content-type", b"x", b"user-agent", b"a-longer-name"]
    for _ in range(1000):
        headers = [
            (chance.choice(names), chance.randbytes(chance.randrange(60)))
            for _ in range(chance.randrange(1, 8))
        ]
        assert decoder.decode(encoder.encode(headers, huffman=chance.random() < 0.7)) == headers


@pytest.mark.parametrize("likely", [0, 0xFF])
def test_huffman_codes_are_decoded_or_refused_as_hpack_does(likely: int) -> None:
    chance = random.Random(2)
    refused = 0
    for _ in range(20_000):
        coded = bytes(
            chance.choice((likely, chance.randrange(256))) for _ in range(chance.randrange(12))
        )
        try:
            expected = decode_huffman(coded)
        except HPACKDecodingError:
            refused += 1
            with pytest.raises(_Violation):
                _unhuffman(coded)
        else:
            assert _unhuffman(coded) == expected
    assert 1_000 < refused < 19_000


@pytest.fixture
def server() -> Iterator[Any]:
    with Server(Catch, token="secret") as running:
        yield running
        assert not running.errors


def test_health_needs_no_token(server: Any) -> None:
    assert_serves(server.address)


def test_the_health_service_answers_as_grpc_s(server: Any) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check: Any = channel.unary_unary(CHECK)
        assert check(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x01x", timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert_is_watched(server.address)
    assert settles(lambda: not server.connections, 20)
