"""Properties and other extensions; those of the 1.0 line of the protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import any_pb2, wrappers_pb2

import dm_env_rpc_client as d
from dm_env_rpc_client.extensions.legacy_properties import LegacyProperties
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Properties
from tests.extensions.line_1_0_server import line_1_0_server
from tests.transcripts.environments import Counter
from tests.transcripts.scenarios.playing import act
from tests.transcripts.scene import Scenario, Scene


def offered() -> Properties:
    values: dict[str, Any] = {"gravity": 9.81, "name": "earth", "map": np.eye(2, dtype=np.int32)}
    properties = Properties()
    for key in values:
        setter = None if key == "map" else functools.partial(values.__setitem__, key)
        getter = functools.partial(values.__getitem__, key)
        properties.add(f"physics.{key}", getter, setter, description="x")
    properties.add("flag", lambda: True)
    return properties


def of_a_server(scene: Scene) -> None:
    address = scene.serve(Counter, properties=offered())
    with d.connect(address) as connection:
        properties = PropertiesExtension(connection)
        for spec in properties.walk():
            scene.see("spec", repr(spec))
        for key in ("physics.gravity", "physics.name", "physics.map", "flag", "physics", "", "no"):
            with scene.fails(key):
                scene.see("read", properties[key])
        wrong: list[tuple[str, Any]] = [
            ("physics.gravity", 1.5),
            ("physics.gravity", 2),
            ("physics.gravity", "heavy"),
            ("physics.name", "moon"),
            ("physics.map", [[1, 2], [3, 4]]),
            ("no", 1),
        ]
        for key, value in wrong:
            with scene.fails(f"{key} = {value!r}"):
                properties[key] = value
        scene.see("read", properties["physics.gravity"], properties["physics.name"])


def of_an_environment(scene: Scene) -> None:
    with d.connect(scene.serve(Counter)) as connection:
        properties = PropertiesExtension(connection)
        with scene.fails("before it joins"):
            scene.see("read", properties["level.count"])
        env, world = d.create_and_join_world(connection, {}, {})
        env.reset()
        env.step(act(1))
        scene.see("list", [repr(spec) for spec in properties.walk()])
        scene.see("read", properties["level.count"], properties["level.start"])
        properties["level.start"] = 40
        scene.see("step", env.step(act(1)))
        for key, value in {"level.count": 3, "level.start": -1, "secret": 2}.items():
            with scene.fails(f"{key} = {value}"):
                properties[key] = value
        with scene.fails("what cannot be read"):
            scene.see("read", properties["secret"])
        env.close()
        d.destroy_world(connection, world)


def in_a_batch(scene: Scene) -> None:
    with d.connect(scene.serve(Counter)) as connection:
        env, _ = d.create_and_join_world(connection, {"num_envs": 2}, {})
        properties = PropertiesExtension(connection)
        scene.see("list", [repr(spec) for spec in properties.walk()])
        for key in ("batch.num_envs", "batch.autoreset_mode", "level.count"):
            with scene.fails(key):
                scene.see(key, properties[key])
        env.close()


def extensions(scene: Scene) -> None:
    def double(request: Any, world: Any) -> Any:
        if request.value < 0:
            raise ValueError("too small")
        return wrappers_pb2.Int64Value(value=2 * request.value + (world is not None))

    address = scene.serve(Counter, extensions={wrappers_pb2.Int64Value: double})
    with d.connect(address) as connection:

        def send(message: Any) -> None:
            request, answer = any_pb2.Any(), wrappers_pb2.Int64Value()
            request.Pack(message)
            with scene.fails("extension"):
                connection.send(request).Unpack(answer)
                scene.see("answer", answer.value)

        send(wrappers_pb2.Int64Value(value=21))
        send(wrappers_pb2.Int64Value(value=-1))
        send(wrappers_pb2.StringValue(value="x"))
        with d.create_and_join_world(connection, {}, {}).env:
            send(wrappers_pb2.Int64Value(value=21))


def of_the_adaptor(scene: Scene) -> None:
    """The argument `extensions` of `make`."""

    def extensions_of(connection: Any) -> dict[str, Any]:
        return {"properties": PropertiesExtension(connection)}

    with d.make(scene.serve(Counter), extensions=extensions_of) as made:
        env: Any = made  # It has the names of its extensions.
        env.reset()
        scene.see("read", env.properties["level.count"])


def line_1_0(scene: Scene) -> None:
    values: dict[str, Any] = {"a.b": 3, "a.c": "x", "forgotten": 1}
    server = scene.stack.enter_context(line_1_0_server(values))
    with d.connect(scene.tap(server.address)) as connection:
        properties = LegacyProperties(connection)
        scene.see("read", properties["a.b"], properties.read_all(["a.b", "a.c"]))
        properties["a.b"] = 4
        properties.write_all({"a.b": 5, "a.c": "y"})
        scene.see("list", [repr(spec) for spec in properties.list("a")])
        scene.see("list", [repr(spec) for spec in properties.list_all(["", "a"])])
        for key in ("no", "forgotten"):
            with scene.fails(key):
                properties.read(key)
        with scene.fails("no parent"):
            properties.list("no")


PLAYED: dict[str, Callable[[Scene], Any]] = {
    "of a server": of_a_server,
    "of an environment": of_an_environment,
    "of a batch": in_a_batch,
    "extensions": extensions,
    "extensions of an adaptor": of_the_adaptor,
    "the 1.0 line": line_1_0,
}

SCENARIOS: dict[str, Scenario] = {name: Scenario(play) for name, play in PLAYED.items()}
