"""Who is at fault when a request fails: the environment, which is in the books, or the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import pytest
from google.rpc import code_pb2, status_pb2
from gymnasium import spaces

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    ProtocolError,
    SpecError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    make,
)
from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.worlds.world_registry import CLOSE_SECONDS
from tests.mistakes.wrong_environments import Countdown, CountdownEnv
from tests.support.environments import Broken, Echo
from tests.support.scripted import settles


def in_a_step(server: Server, settings: dict[str, Any]) -> None:
    with make(server.address, settings) as env:
        env.reset()
        (name,) = env.action_spec()
        env.step({name: 0})


def in_rows(server: Server, settings: dict[str, Any]) -> None:
    with BatchedEnvironment(server.address, 2, settings) as envs:
        envs.reset()
        (name,) = envs.action_spec()
        envs.step({name: [0, 0]})


def check_books(server: Server, errors: int, refusals: int = 0) -> None:
    stats = server.stats()
    assert (stats.errors, stats.refusals) == (errors, refusals)
    assert len(server.errors) == errors


class UnreadableError(Exception):
    """An error whose text is one itself."""

    def __str__(self) -> str:
        raise OSError("there is no text")


RAISED: list[Callable[[], Exception]] = [
    lambda: SpecError("not that"),
    lambda: ProtocolError("not that"),
    # Of another server, whose client the environment is.
    lambda: DmEnvRpcError(status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="not here")),
    lambda: ValueError("not that"),
    lambda: AttributeError("not that"),
    lambda: OSError("\ud800"),
    UnreadableError,
    lambda: RuntimeError("x" * 1_000_000),
]
"""What any method may raise; none of it is a refusal of the client's request."""


@pytest.mark.parametrize("at", ["step", "reset"])
@pytest.mark.parametrize("kind", [Countdown, CountdownEnv])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error()).__name__)
def test_an_environment_is_at_fault_alone_and_in_rows(
    error: Callable[[], Exception], kind: type, at: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error()

    expected = type(error()).__name__
    with serve(type("Faulty", (kind,), {at: fail})) as server:
        with pytest.raises(DmEnvRpcError) as caught:
            in_a_step(server, {})
        check_books(server, 1)
        with pytest.raises(EnvironmentsFailedError) as failed:
            in_rows(server, {})
        assert failed.value.failures.keys() == {0, 1}
        for each in (caught.value, *failed.value.failures.values()):
            assert isinstance(each, DmEnvRpcError)
            assert each.code == code_pb2.INTERNAL
            assert _kind_of(each.message) == expected
        check_books(server, 3)


def _kind_of(message: str) -> str:
    return message.rpartition("request: ")[2].partition(":")[0]


@pytest.mark.parametrize(
    "options", [{"transport": "http2"}, {"transport": "grpc"}, {"processes": 2}], ids=str
)
def test_rows_that_fail_are_in_the_books_of_every_kind_of_server(options: Any) -> None:
    with serve(Broken, **options) as server:
        with pytest.raises(EnvironmentsFailedError):
            in_rows(server, {"at": "step"})
        assert settles(lambda: len(server.errors) == 2)
        check_books(server, 2)


def test_errors_of_constructors_and_of_closes_are_in_the_books() -> None:
    with serve(Broken) as server:
        with pytest.raises(DmEnvRpcError):
            make(server.address, {"at": "__init__", "num_envs": 3})
        check_books(server, 1)
        env = make(server.address, {"at": "close", "num_envs": 3})
        env.reset()
        env.close()
        # The first is that of the request, the others are reported beside it.
        assert settles(lambda: server.stats().errors == 4)
        check_books(server, 4)


class Graphs(CountdownEnv):
    """Its actions are sent as JSON."""

    action_space: spaces.Space[Any] = spaces.Graph(spaces.Box(-1, 1, (2,)), None)


def _graph() -> str:
    return value_json.encode(Graphs.action_space.sample())


def _write(server: Server, key: str, value: Any) -> None:
    with make(server.address) as env:
        PropertiesExtension(env.connection).write(key, value)


def _create(server: Server, settings: Any) -> None:
    with connect(server.address) as connection:
        create_world(connection, settings)


def _raw_setting(server: Server) -> None:
    with connect(server.address) as connection:
        settings = {"length": dm_env_rpc_pb2.Tensor()}
        connection.send(dm_env_rpc_pb2.CreateWorldRequest(settings=settings))


def _reset(server: Server, settings: Any) -> None:
    with make(server.address) as env:
        env.reset(settings)


def _act(server: Server, action: Any) -> None:
    with make(server.address) as env:
        env.reset()
        env.step(action)


def refuse(value: Any) -> None:
    raise ValueError("not that")


def offered() -> Properties:
    properties = Properties()
    properties.add("volume", lambda: 5, refuse)
    return properties


def picky(size: int = 1) -> Echo:
    if size != 1:
        raise ValueError("not that")
    return Echo()


CLIENTS: dict[str, tuple[Any, Callable[[Server], None], str]] = {
    "no action": (Echo, lambda server: _act(server, {}), "missing action 'value'"),
    "an action that is no JSON": (
        Graphs, lambda server: _act(server, {"action": "{"}), "expected UTF-8 JSON",
    ),
    "an unknown setting": (
        Echo, lambda server: _create(server, {"width": 1}), "known settings: length, seconds",
    ),
    "a setting without elements": (Echo, _raw_setting, "no payload"),
    "a setting that the factory refuses": (
        picky, lambda server: _create(server, {"size": 5}), "does not take these settings: not tha",
    ),
    "a seed that is a fraction": (
        Graphs, lambda server: _reset(server, {"seed": 0.5}), "setting 'seed'",
    ),
    "options that are no JSON": (
        Graphs, lambda server: _reset(server, {"options": "{"}), "setting 'options'",
    ),
    "options that are no object": (
        Graphs, lambda server: _reset(server, {"options": "[]"}), "setting 'options'",
    ),
    "a property of another type": (
        Echo, lambda server: _write(server, "volume", "loud"), "dtype string; expected int64",
    ),
    "a property that is refused": (
        Echo, lambda server: _write(server, "volume", 6), "not that",
    ),
    "an unknown property": (Echo, lambda server: _write(server, "colour", 6), "'colour'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CLIENTS)
def test_a_client_is_at_fault(case: str) -> None:
    served, ask, text = CLIENTS[case]
    with serve(served, properties=offered()) as server:
        with pytest.raises(DmEnvRpcError, match=text) as caught:
            ask(server)
        assert caught.value.code in (code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND)
        check_books(server, 0, 1)


def test_the_action_of_one_row_is_refused_and_the_other_row_steps() -> None:
    with serve(Graphs) as server, make(server.address, {"num_envs": 2}) as env:
        env.reset()
        action = np.array(["{", _graph()], object)
        observation = env.step({"action": action}).observation
        errors = batches.row_errors(observation[batches.ROW_ERRORS], 2)
        assert errors.keys() == {0}
        assert "expected UTF-8 JSON" in errors[0]
        check_books(server, 0, 1)


def _no_device() -> int:
    raise ValueError("no device")


BROKEN: dict[str, Callable[[Properties], None]] = {
    "a getter that raises": lambda properties: properties.add("x", _no_device, refuse),
    "a getter of what cannot be sent": lambda properties: properties.add("x", object, refuse),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_property_that_cannot_be_read_is_no_fault_of_its_reader_or_writer(broken: str) -> None:
    properties = Properties()
    BROKEN[broken](properties)
    with serve(Echo, properties=properties) as server, make(server.address) as env:
        extension = PropertiesExtension(env.connection)
        for ask in (lambda: extension.read("x"), lambda: extension.write("x", 1)):
            with pytest.raises(DmEnvRpcError) as caught:
                ask()
            assert caught.value.code == code_pb2.INTERNAL
        check_books(server, 2)


@pytest.mark.parametrize("served", [serve, dm_env_rpc_server.Server])
def test_a_factory_that_fails_without_settings_is_at_fault(served: Any) -> None:
    def broken(**settings: Any) -> Echo:
        raise ValueError("no device")

    with served(broken) as server:
        with pytest.raises(DmEnvRpcError, match="no device") as caught:
            make(server.address)
        assert caught.value.code == code_pb2.INTERNAL
        assert len(server.errors) == 1
        with pytest.raises(DmEnvRpcError, match="does not take these settings: no device"):
            make(server.address, {"size": 1})
        assert len(server.errors) == 1


class _Lingering(Catch):
    """Takes longer to close than a step that is under way may take when the server stops."""

    def __init__(self, go: threading.Event, closed: threading.Event):
        super().__init__()
        self._go, self._closed = go, closed

    def step(self, action: Any) -> dm_env.TimeStep:
        self._go.wait()
        return super().step(action)

    def close(self) -> None:
        time.sleep(2 * CLOSE_SECONDS)  # So slow is what it frees.
        self._closed.set()


def test_an_environment_that_is_slow_to_close_is_not_taken_for_one_in_a_step() -> None:
    go, closed = threading.Event(), threading.Event()
    with serve(lambda: _Lingering(go, closed)) as server:
        env = make(server.address)
        env.reset()
        (entry,) = server._serving._host.worlds._entries.values()
        world: Any = entry.world
        env._start_step(env._prepare_step({"paddle": 1}))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        # The step ends while the world is to be closed, and then its agent leaves, which closes it.
        assert settles(lambda: world._is_closed)
        go.set()
        stopping.join()
        assert closed.is_set()
        assert server.errors == []
    env.close()
