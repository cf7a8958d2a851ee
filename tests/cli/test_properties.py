"""`dm-env-rpc properties`: over both interfaces, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import typer.testing
from dm_env import specs
from google.rpc import code_pb2

from dm_env_rpc_client import connect, create_world, destroy_world
from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2, properties_pb2
from dm_env_rpc_client.cli.properties import commands as command
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import invoke
from tests.extensions.line_1_0_server import line_1_0_server


def run(*arguments: str, code: int = 0) -> typer.testing.Result:
    return invoke("properties", *arguments, code=code)


class Tunable(Catch):
    """Has properties of all kinds, of its world and of its server."""

    def __init__(self, gravity: float = 9.81) -> None:
        super().__init__()
        self.gravity = gravity
        self.name = "hill"
        self.size = np.array([8, 6], np.int32)
        self.is_dark = False
        self.level = np.uint8(3)
        self.names = np.array(["a", "b"], object)
        self.properties = Properties()
        self.properties.expose(self, "gravity", prefix="physics")
        self.properties.expose(self, "name", "size", "is_dark", "level", "names", prefix="map")
        self._share = 0.5
        self.properties.add(
            "share",
            lambda: self._share,
            lambda value: setattr(self, "_share", value),
            spec=specs.BoundedArray((), np.float32, 0, 1),
            description="how much [of it] there is",
        )
        self.properties.add("limit", lambda: np.inf)
        self.properties.add("secret", None, lambda _: None, spec=specs.Array((), np.int8))
        self.properties.add("broken", lambda: 1 // 0, spec=specs.Array((), np.float32))


@pytest.fixture
def server() -> Iterator[Server]:
    universal = Properties()
    universal.add("version", lambda: "1.2")
    with serve(Tunable, properties=universal) as server:
        yield server


def test_without_a_world_there_are_the_servers_own(server: Server) -> None:
    assert "version  string, read-only" in run("list", server.address).stdout
    assert run("get", server.address, "version").stdout == "1.2\n"


def test_a_tree_with_values(server: Server) -> None:
    text = run("list", server.address, "--new-world", "--create=gravity=2.5", "--values").stdout
    assert "└── gravity = 2.5  float64" in text
    assert "├── is_dark = False  bool" in text
    assert "size = [8, 6]  int32 [2]" in text
    assert "share = 0.5  float32, 0 .. 1  how much [of it] there is" in text
    assert "secret  int8, write-only" in text
    assert "broken the server answered INTERNAL" in " ".join(text.split())
    assert server.world_count == 0


def test_a_branch_and_a_depth(server: Server) -> None:
    branch = run("list", server.address, "physics", "--new-world").stdout
    assert branch.splitlines() == ["physics", "└── gravity  float64"]
    top = run("list", server.address, "--new-world", "--depth=1").stdout
    assert "physics" in top
    assert "gravity" not in top


def test_listings_as_json(server: Server) -> None:
    result = json.loads(run("list", server.address, "--new-world", "--values", "--json").stdout)
    assert (result["address"], result["interface"]) == (server.address, "extension")
    by_key = {entry["key"]: entry for entry in result["properties"]}
    assert by_key["share"] == {
        "key": "share",
        "readable": True,
        "writable": True,
        "listable": False,
        "description": "how much [of it] there is",
        "dtype": "float32",
        "shape": [],
        "minimum": 0.0,
        "maximum": 1.0,
        "value": 0.5,
    }
    assert by_key["map.size"]["value"] == [8, 6]
    assert by_key["limit"]["value"] == "Infinity"
    assert "dtype" not in by_key["physics"]
    assert "value" not in by_key["secret"]
    assert "INTERNAL" in by_key["broken"]["error"]


def test_the_properties_of_a_world_that_exists_are_set_for_good(server: Server) -> None:
    with connect(server.address) as connection:
        world = create_world(connection)
        of_world = (server.address, "--world", world)
        done = run("set", *of_world, "physics.gravity=1.62", "map.level=0x1f")
        assert done.stdout == "physics.gravity = 1.62\nmap.level = 31\n"
        read = run("get", *of_world, "physics.gravity", "map.level", "--json")
        values = {"physics.gravity": 1.62, "map.level": 31}
        assert json.loads(read.stdout) == {"address": server.address, "properties": values}
        destroy_world(connection, world)


@pytest.mark.parametrize(
    ("assignment", "shown"),
    [
        ("map.is_dark=yes", "map.is_dark = True"),
        ("map.is_dark=OFF", "map.is_dark = False"),
        ("map.size=[1, 2]", "map.size = [1, 2]"),
        ('map.names=["x", "y"]', "map.names = ['x', 'y']"),
        ("map.name=a = b", "map.name = a = b"),
        ("map.name=", "map.name = "),
        ("physics.gravity=-1e3", "physics.gravity = -1000.0"),
        ("share=1", "share = 1.0"),
        ("secret=-7", "secret = -7"),
    ],
)
def test_values_are_read_as_their_dtype(server: Server, assignment: str, shown: str) -> None:
    done = run("set", server.address, assignment, "--new-world")
    assert done.stdout.rstrip("\n") == shown


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("map.is_dark=maybe", "property 'map.is_dark' requires bool, got 'maybe'"),
        ("map.level=256", "256, which uint8 cannot hold"),
        ("map.level=1.5", "requires uint8, got '1.5'"),
        ("map.size=3", "requires a JSON list of int32, shape [2], got '3'"),
        ("map.size=[1, 2, 3]", "Expected shape (2,)"),
        ("map.size=[1", "requires a JSON list"),
        ('map.size=["a", "b"]', "int32"),
        ("share=1.5", "not all within bounds"),
        ("physics.gravity=heavy", "requires float64, got 'heavy'"),
    ],
)
def test_a_value_that_does_not_fit_writes_nothing(
    server: Server, assignment: str, said: str
) -> None:
    with connect(server.address) as connection:
        world = create_world(connection)
        failed = run("set", server.address, "map.name=lake", assignment, "--world", world, code=2)
        assert said in failed.stderr
        assert run("get", server.address, "map.name", "--world", world).stdout == "hill\n"
        destroy_world(connection, world)


def test_a_server_of_the_1_0_line_is_found_out() -> None:
    values: dict[str, Any] = {"level.seed": 3, "level.name": "hill"}
    with line_1_0_server(values) as server:
        listed = json.loads(run("list", server.address, "--json").stdout)
        assert listed["interface"] == "legacy"
        assert [entry["key"] for entry in listed["properties"]] == ["level.name", "level.seed"]
        run("set", server.address, "level.seed=10", "level.name=12", "--interface=legacy")
        assert values == {"level.seed": 10, "level.name": "12"}
        assert run("get", server.address, "level.name").stdout == "12\n"
        assert "no nothing" in run("get", server.address, "nothing", code=1).stderr


def test_a_server_that_ends_the_stream_at_what_it_does_not_know_is_asked_again() -> None:
    def script(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            known = line_1_0_pb2.PropertyRequest.FromString(request.SerializeToString())
            if known.WhichOneof("payload") is None:
                context.abort(grpc.StatusCode.INTERNAL, "never heard of it")
            response = line_1_0_pb2.PropertyResponse()
            listed = response.list_property.properties["depth"]
            listed.spec.name, listed.spec.dtype = "depth", dm_env_rpc_pb2.INT32
            listed.is_readable = True
            yield response.SerializeToString()

    with ScriptedServer(script) as server:
        assert "depth  int32, read-only" in run("list", server.address).stdout


def test_a_server_without_properties_says_so() -> None:
    with serve(Catch) as server:
        listed = run("list", server.address)
        assert "has no properties; to list those of a world, add --world NAME" in listed.stderr
        refused = run("get", server.address, "key", "--interface=legacy", code=1)
        assert "no payload that this server knows" in refused.stderr

    def refuse(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        error = {"code": code_pb2.UNIMPLEMENTED, "message": "not here"}
        for _ in requests:
            yield dm_env_rpc_pb2.EnvironmentResponse(error=error)

    with ScriptedServer(refuse) as refusing:
        refused = run("list", refusing.address, code=1)
        assert "through the core messages of dm_env_rpc 1.0: " in refused.stderr
        assert "UNIMPLEMENTED: not here" in refused.stderr


def answering(answer: Callable[[Any, Any], None]) -> Callable[..., Iterator[Any]]:
    """A server that answers a PropertyRequest with a PropertyResponse, which a function fills."""

    def script(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            asked, told = properties_pb2.PropertyRequest(), properties_pb2.PropertyResponse()
            request.extension.Unpack(asked)
            getattr(told, asked.WhichOneof("payload")).SetInParent()
            answer(asked, told)
            response = dm_env_rpc_pb2.EnvironmentResponse()
            response.extension.Pack(told)
            yield response

    return script


def test_a_property_that_is_not_listed_can_be_set() -> None:
    sent: list[Any] = []
    with ScriptedServer(answering(lambda asked, told: sent.append(asked))) as server:
        run("set", server.address, "hidden=[1, 2]", "spoken=hello")
    written = {each.write_property.key: each.write_property.value for each in sent}
    assert list(written["hidden"].int64s.array) == [1, 2]
    assert list(written["spoken"].strings.array) == ["hello"]


def test_a_tree_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_MOST", 20)

    def answer(asked: Any, told: Any) -> None:
        entry = told.list_property.values.add()
        entry.spec.name, entry.is_listable = f"{asked.list_property.key}.x", True

    with ScriptedServer(answering(answer)) as server:
        listed = run("list", server.address)
    assert "stopped after 20 properties" in listed.stderr
    assert len(listed.stdout.splitlines()) == 21
