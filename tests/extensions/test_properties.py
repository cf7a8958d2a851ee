"""Properties, both dialects: read, write, list, walk; on the server plain Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1.extensions import properties as reference_properties
from google.protobuf import any_pb2, struct_pb2, wrappers_pb2
from google.rpc import code_pb2

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect,
    join_world,
    make,
    pack_tensor,
    properties_pb2,
)
from dm_env_rpc_client._proto import line_1_0_pb2
from dm_env_rpc_client.extensions.legacy_properties import LegacyProperties
from dm_env_rpc_client.extensions.properties import (
    PropertiesExtension,
    PropertyNotFoundError,
    PropertyPermissionError,
    PropertyValueError,
)
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.server import Catch, Properties, Race, Server, serve
from dm_env_rpc_client.testing import Response, ScriptedServer
from tests.extensions.line_1_0_server import line_1_0_server


class Level:
    """An engine's own object, with plain Python properties."""

    def __init__(self) -> None:
        self.name = "meadow"
        self.wind = np.zeros(2)
        self._seed = 7

    @property
    def seed(self) -> int:
        """Where the level grows from."""
        return self._seed

    @seed.setter
    def seed(self, value: int) -> None:
        if value < 0:
            raise ValueError("a seed is not negative")
        self._seed = value

    @property
    def size(self) -> float:
        return 2.5


class Tunable(Catch):
    """Catch with properties of its own."""

    def __init__(self, rows: int = 5):
        super().__init__(rows)
        self.level = Level()
        self.properties = Properties()
        self.properties.expose(self, "level.seed", "level.size", "level.name", "level.wind")
        self.properties.add("version", lambda: "world")
        self.difficulty: list[int] = []
        spec = specs.BoundedArray((), np.int32, 0, 3)
        self.properties.add("difficulty", None, self.difficulty.append, spec=spec)
        self.properties.add("broken", lambda: 1 / 0)


@contextlib.contextmanager
def of(server: Server | ScriptedServer) -> Iterator[PropertiesExtension]:
    """The properties of a server, on a connection that has not joined."""
    with server, connect(server.address) as connection:
        yield PropertiesExtension(connection)


@pytest.fixture
def server() -> Iterator[Server]:
    universal = Properties()
    universal.add("version", lambda: "1.2", description="Of the server.")
    universal.add("limits.players", lambda: np.int32(4))
    with serve(Tunable, properties=universal) as running:
        yield running


@pytest.fixture
def joined(server: Server) -> Iterator[PropertiesExtension]:
    with make(server.address) as env:
        yield PropertiesExtension(env.connection)


def test_universal_properties_are_there_before_a_join(server: Server) -> None:
    with of(server) as properties:
        assert properties["version"] == "1.2"
        assert properties.read("limits.players") == 4
        assert [spec.key for spec in properties.list()] == ["limits", "version"]
        version = properties.specs()["version"]
        assert (version.readable, version.writable, version.listable) == (True, False, False)
        assert version.description == "Of the server."
        assert isinstance(version.spec, specs.StringArray)
        limits = properties.specs()["limits"]
        assert (limits.readable, limits.writable, limits.listable) == (False, False, True)
        assert limits.spec is None
        with pytest.raises(KeyError, match="level"):
            properties.read("level.seed")


def test_a_world_adds_its_own_once_joined(joined: PropertiesExtension) -> None:
    assert joined["version"] == "world"
    assert joined["limits.players"] == 4
    assert set(joined.specs()) == {"broken", "difficulty", "level", "limits", "version"}
    level = joined.specs("level")
    assert set(level) == {"level.seed", "level.size", "level.name", "level.wind"}
    assert level["level.seed"].description == "Where the level grows from."
    assert level["level.seed"].writable
    assert not level["level.size"].writable
    assert level["level.wind"].spec == specs.Array((2,), np.float64)
    assert "level.seed" in repr(level["level.seed"])


def test_the_whole_tree_can_be_walked(joined: PropertiesExtension) -> None:
    walked = [spec.key for spec in joined.walk()]
    assert walked == [
        *("broken", "difficulty", "level", "version", "limits"),
        "limits.players",
        *("level.name", "level.seed", "level.size", "level.wind"),
    ]
    # A value that cannot be had right now does not hide the others.
    assert joined.specs()["broken"].spec is None


def test_values_are_written(joined: PropertiesExtension) -> None:
    joined["level.seed"] = 11
    assert joined["level.seed"] == 11
    joined.write("level.wind", [0.5, -1])
    np.testing.assert_array_equal(joined["level.wind"], [0.5, -1.0])
    joined["level.name"] = pack_tensor("desert")
    assert joined["level.name"] == "desert"
    joined["difficulty"] = np.int32(2)


@pytest.mark.parametrize(
    ("key", "value", "kind", "text"),
    [
        ("level.sead", 1, PropertyNotFoundError, "'level.sead'"),
        ("level.size", 1.0, PropertyPermissionError, "is not writable"),
        ("level", 1, PropertyPermissionError, "can only be listed"),
        ("level.seed", -1, PropertyValueError, "not negative"),
        ("level.seed", "one", PropertyValueError, "dtype string; expected int64"),
        ("level.wind", [1.0], PropertyValueError, r"shape \[1\]"),
        ("difficulty", np.int32(4), PropertyValueError, "outside its bounds"),
        ("level.seed", None, SpecError, "'level.seed'"),
    ],
)
def test_writes_that_cannot_be(
    joined: PropertiesExtension, key: str, value: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        joined[key] = value
    assert joined["level.seed"] == 7


@pytest.mark.parametrize(
    ("method", "key", "kind"),
    [
        ("read", "difficulty", PermissionError),
        ("read", "level", PermissionError),
        ("read", "", KeyError),
        ("list", "version", PermissionError),
        ("list", "nothing", KeyError),
    ],
)
def test_reads_and_lists_that_cannot_be(
    joined: PropertiesExtension, method: str, key: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        getattr(joined, method)(key)
    assert isinstance(caught.value, DmEnvRpcError)


def test_a_getter_that_fails_is_an_internal_error(joined: PropertiesExtension) -> None:
    with pytest.raises(DmEnvRpcError, match="ZeroDivisionError") as caught:
        joined.read("broken")
    assert caught.value.code == code_pb2.INTERNAL


def test_properties_of_a_game_are_those_of_its_world() -> None:
    class Tuned(Race):
        def __init__(self) -> None:
            super().__init__()
            self.properties = Properties()
            self.properties.expose(self, "min_players", prefix="race")

    with (
        serve(Tuned()) as server,
        connect(server.address) as connection,
        join_world(connection, ""),
    ):
        assert PropertiesExtension(connection)["race.min_players"] == 2


def test_the_references_extension_reads_them_too(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        connection = reference_connection.Connection(channel)
        properties = reference_properties.PropertiesExtension(connection)
        assert properties["version"] == "1.2"
        assert set(properties.specs()) == {"limits", "version"}
        with pytest.raises(KeyError):
            properties.read("nothing")
        connection._stream._requests.put(None)
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("",), "empty"),
        (("taken", lambda: 1), "taken"),
        (("new",), "needs a getter or a setter"),
        (("new", None, print), "pass spec="),
    ],
)
def test_properties_that_cannot_be_are_refused_when_added(
    arguments: tuple[Any, ...], text: str
) -> None:
    properties = Properties()
    properties.add("taken", lambda: 0)
    with pytest.raises(SpecError, match=text):
        properties.add(*arguments)
    with pytest.raises(SpecError, match="no attribute"):
        properties.expose(Tunable(), "level.colour")


def test_a_value_with_a_spec_is_sent_as_the_spec_says() -> None:
    properties = Properties()
    properties.add("ratio", lambda: 1, spec=specs.Array((), np.float32))
    with of(serve(Catch, properties=properties)) as found:
        assert found["ratio"].dtype == np.float32


# What a server may answer, and what it may not.


RESPONSE = properties_pb2.PropertyResponse.DESCRIPTOR.full_name


def packed(message: Any) -> any_pb2.Any:
    made = any_pb2.Any()
    made.Pack(message)
    return made


def answering_with(answer: Any) -> ScriptedServer:
    """Answers every extension with this one, packed if it is not."""
    if not isinstance(answer, any_pb2.Any):
        answer = packed(answer)
    return ScriptedServer(lambda requests, _: (Response(extension=answer) for _ in requests))


NO_ANSWERS: dict[str, Any] = {
    "another type": struct_pb2.Value(),
    "empty": properties_pb2.PropertyResponse(),
    "another field": properties_pb2.PropertyResponse(write_property={}),
    "no value": properties_pb2.PropertyResponse(read_property={}),
    "nothing": any_pb2.Any(),
    "garbage": any_pb2.Any(type_url=f"type.googleapis.com/{RESPONSE}", value=b"\xff"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_an_answer_that_is_none_is_a_protocol_error(name: str) -> None:
    with of(answering_with(NO_ANSWERS[name])) as properties, pytest.raises(ProtocolError):
        properties.read("key")


def test_a_spec_that_cannot_be_is_a_protocol_error() -> None:
    listed = properties_pb2.PropertyResponse()
    listed.list_property.values.add().spec.MergeFromString(bytes([3 << 3, 77]))
    expected = pytest.raises(ProtocolError, match="not a data type")
    with of(answering_with(listed)) as properties, expected:
        properties.list()


def test_a_walk_ends_where_a_tree_goes_round_in_circles() -> None:
    listed = properties_pb2.PropertyResponse()
    entry = listed.list_property.values.add()
    entry.spec.name, entry.is_listable = "loop", True
    with of(answering_with(listed)) as properties:
        assert [spec.key for spec in properties.walk()] == ["loop"]


# Other extensions.


def test_messages_of_ones_own_are_answered_by_ones_own_handler() -> None:
    def double(message: wrappers_pb2.Int64Value, world: Any) -> wrappers_pb2.Int64Value:
        return wrappers_pb2.Int64Value(value=message.value * (1 if world is None else 2))

    def send(connection: Connection, number: int) -> int:
        answer = wrappers_pb2.Int64Value()
        assert connection.send(packed(wrappers_pb2.Int64Value(value=number))).Unpack(answer)
        return answer.value

    with serve(Catch, extensions={wrappers_pb2.Int64Value: double}) as server:
        with connect(server.address) as connection:
            assert send(connection, 21) == 21
            with pytest.raises(DmEnvRpcError, match=r"google.protobuf.Value.*Int64Value"):
                connection.send(packed(struct_pb2.Value(number_value=1)))
            garbage = packed(wrappers_pb2.Int64Value())
            garbage.value = b"\xff"
            with pytest.raises(DmEnvRpcError, match="cannot be parsed"):
                connection.send(garbage)
        with make(server.address) as env:
            assert send(env.connection, 21) == 42


# The 1.0 line: properties in the core protocol, tags 8, 9 and 10.


def test_legacy_properties_are_read_written_and_listed() -> None:
    values = {"level.seed": 3, "level.name": "hill", "forgotten": 1}
    with line_1_0_server(values) as server, connect(server.address) as connection:
        properties = LegacyProperties(connection)
        assert properties["level.seed"] == 3
        both = {"level.seed": 3, "level.name": "hill"}
        assert properties.read_all(["level.seed", "level.name"]) == both
        properties["level.seed"] = 9
        properties.write_all({"level.seed": 10, "level.name": "lake"})
        assert (values["level.seed"], values["level.name"]) == (10, "lake")
        assert [spec.key for spec in properties.list("level")] == ["level.name", "level.seed"]
        spec = properties.specs()["level.seed"]
        assert (spec.readable, spec.writable) == (True, True)
        assert spec.spec == specs.Array((), np.int64)
        with pytest.raises(KeyError, match="sead"):
            properties.read("level.sead")
        with pytest.raises(PropertyNotFoundError):
            properties.list("nothing")
        with pytest.raises(ProtocolError, match="did not return property 'forgotten'"):
            properties.read("forgotten")


def test_legacy_properties_travel_under_the_tags_of_the_line() -> None:
    for number, request in (
        (8, line_1_0_pb2.ReadPropertyRequest(keys=["a"])),
        (9, line_1_0_pb2.WritePropertyRequest()),
        (10, line_1_0_pb2.ListPropertyRequest()),
    ):
        assert envelopes.encode_request(request).message[0] == number << 3 | 2
