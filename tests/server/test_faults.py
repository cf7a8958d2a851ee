"""Who is at fault when a request fails: the environment, which is in the books, or the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import dm_env
import gymnasium
import numpy as np
import pytest
from google.rpc import code_pb2
from gymnasium import spaces

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    make,
)
from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.server.worlds.world_registry import CLOSE_SECONDS
from tests.server.faulty import MID, RAISED, RETURNED, Faulty, FaultyEnv
from tests.support.environments import Echo
from tests.support.scripted import settles

Transport = Literal["http2", "grpc"]


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


FAULTS = [
    *((Faulty, fault, at) for fault in RAISED for at in ("step", "reset")),
    *((Faulty, fault, "step") for fault in MID),
    *((FaultyEnv, fault, at) for fault in ("SpecError", "a surrogate") for at in ("step", "reset")),
    *((FaultyEnv, fault, "step") for fault in RETURNED),
    *((FaultyEnv, fault, "reset") for fault in ("an element too large", "NaN", "another shape")),
]


@pytest.fixture(scope="module")
def faulty() -> Iterator[Server]:
    with serve({"Faulty": Faulty, "FaultyEnv": FaultyEnv}) as server:
        yield server


@pytest.mark.parametrize(("kind", "fault", "at"), FAULTS)
def test_an_environment_is_at_fault_alone_and_in_rows(
    faulty: Server, kind: type, fault: str, at: str
) -> None:
    settings = {"environment": kind.__name__, "fault": fault, "at": at}
    before = faulty.stats()
    with pytest.raises(DmEnvRpcError) as caught:
        in_a_step(faulty, settings)
    assert caught.value.code == code_pb2.INTERNAL
    assert faulty.stats().errors == before.errors + 1
    with pytest.raises(EnvironmentsFailedError) as failed:
        in_rows(faulty, settings)
    assert failed.value.failures.keys() == {0, 1}
    for error in failed.value.failures.values():
        assert isinstance(error, DmEnvRpcError)
        assert error.code == code_pb2.INTERNAL
        # What is at fault is the same.
        assert _kind_of(error.message) == _kind_of(caught.value.message)
    if fault in RAISED:
        assert _kind_of(caught.value.message) == type(RAISED[fault]()).__name__
    after = faulty.stats()
    assert after.errors == before.errors + 3
    assert after.refusals == before.refusals


def _kind_of(message: str) -> str:
    return message.rpartition("request: ")[2].partition(":")[0]


@pytest.mark.parametrize("fault", ["SpecError", "a long text", "an error without text"])
@pytest.mark.parametrize(
    ("transport", "processes"), [("http2", None), ("grpc", None), ("http2", 2)]
)
def test_rows_that_fail_are_in_the_books_of_every_kind_of_server(
    processes: int | None, transport: Transport, fault: str
) -> None:
    with serve(Faulty, transport=transport, processes=processes) as server:
        with pytest.raises(EnvironmentsFailedError):
            in_rows(server, {"fault": fault})
        assert settles(lambda: len(server.errors) == 2)
        check_books(server, 2)


def test_errors_of_constructors_and_of_closes_are_in_the_books() -> None:
    with serve(Faulty) as server:
        with pytest.raises(DmEnvRpcError):
            make(server.address, {"fault": "KeyError", "at": "constructor", "num_envs": 3})
        check_books(server, 1)
        env = make(server.address, {"fault": "KeyError", "at": "close", "num_envs": 3})
        env.reset()
        env.close()
        # The first is that of the request, the others are reported beside it.
        assert settles(lambda: server.stats().errors == 4)
        assert len(server.errors) == 4


class Graphs(gymnasium.Env[Any, Any]):
    """Its actions are sent as JSON."""

    action_space = spaces.Graph(spaces.Box(-1, 1, (2,)), None)
    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.uint8), 0.0, False, False, {}


class Vectors(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Returns what `fault` names; its actions are sent as JSON."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, fault: str = "") -> None:
        self.num_envs = 2
        self.single_action_space = Graphs.action_space
        self.single_observation_space = Graphs.observation_space
        self._fault = fault

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.uint8), {}

    def step(self, actions: Any) -> Any:
        rows = 3 if self._fault == "rows" else 2
        reward = np.zeros(1 if self._fault == "rewards" else 2)
        value = 300 if self._fault == "values" else 0
        observation = np.full((rows, 2), value)
        return observation, reward, np.zeros(2, bool), np.zeros(2, bool), {}


@pytest.mark.parametrize("fault", ["rows", "rewards", "values"])
def test_a_vector_environment_is_at_fault(fault: str) -> None:
    with serve(Vectors) as server, make(server.address, {"fault": fault}) as e:
        e.reset()
        action = e.action_spec()["action"].generate_value()
        action[:] = _graph()
        with pytest.raises(DmEnvRpcError) as caught:
            e.step({"action": action})
        assert caught.value.code == code_pb2.INTERNAL
        check_books(server, 1)


def _graph() -> str:
    return value_json.encode(Graphs.action_space.sample())


def _write(server: Server, key: str, value: Any) -> None:
    with make(server.address) as env:
        PropertiesExtension(env.connection).write(key, value)


def _step(server: Server, **request: Any) -> None:
    with make(server.address) as env:
        env.reset()
        env.connection.send(dm_env_rpc_pb2.StepRequest(**request))


def _create(server: Server, settings: Any) -> None:
    with connect(server.address) as connection:
        create_world(connection, settings)


def _raw_setting(server: Server) -> None:
    with connect(server.address) as connection:
        settings = {"length": dm_env_rpc_pb2.Tensor()}
        connection.send(dm_env_rpc_pb2.CreateWorldRequest(settings=settings))


def _reset(server: Server, settings: Any, world: Any = None) -> None:
    with make(server.address, world or {}) as env:
        env.reset(settings)


def _act(server: Server, action: Any, **settings: Any) -> None:
    with make(server.address, settings) as env:
        env.reset()
        env.step({"action": action})


def tensor(value: int) -> dm_env_rpc_pb2.Tensor:
    found = dm_env_rpc_pb2.Tensor()
    found.int64s.array.append(value)
    return found


def floats() -> dm_env_rpc_pb2.Tensor:
    found = dm_env_rpc_pb2.Tensor()
    found.floats.array.append(0.5)
    return found


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


CLIENTS: dict[str, tuple[Any, Callable[[Server], None]]] = {
    "an action of another dtype": (Echo, lambda server: _step(server, actions={1: floats()})),
    "an unknown action": (Echo, lambda server: _step(server, actions={9: tensor(1)})),
    "an action without elements": (
        Echo, lambda server: _step(server, actions={1: dm_env_rpc_pb2.Tensor()}),
    ),
    "no action": (Echo, _step),
    "an unknown observation": (
        Echo, lambda server: _step(server, actions={1: tensor(1)}, requested_observations=[9]),
    ),
    "an action that is no JSON": (Graphs, lambda server: _act(server, "{")),
    "an unknown setting": (Echo, lambda server: _create(server, {"width": 1})),
    "a setting without elements": (Echo, _raw_setting),
    "a setting that the factory refuses": (
        picky, lambda server: _create(server, {"size": 5}),
    ),
    "a text as num_envs": (Echo, lambda server: _create(server, {"num_envs": "two"})),
    "no rows": (Echo, lambda server: _create(server, {"num_envs": 0})),
    "settings of other rows": (
        Echo, lambda server: _create(server, {"num_envs": 2, "rows.length": [1, 2, 3]}),
    ),
    "a mask of other rows": (
        Echo, lambda server: _reset(server, {"reset_mask": [True]}, {"num_envs": 2}),
    ),
    "a mask of a vector environment": (
        Vectors, lambda server: _reset(server, {"reset_mask": [True, False]}),
    ),
    "a seed that is a fraction": (Graphs, lambda server: _reset(server, {"seed": 0.5})),
    "options that are no JSON": (Graphs, lambda server: _reset(server, {"options": "{"})),
    "options that are no object": (Graphs, lambda server: _reset(server, {"options": "[]"})),
    "a property of another type": (Echo, lambda server: _write(server, "volume", "loud")),
    "a property that is refused": (Echo, lambda server: _write(server, "volume", 6)),
    "an unknown property": (Echo, lambda server: _write(server, "colour", 6)),
}  # fmt: skip


@pytest.mark.parametrize("case", CLIENTS)
def test_a_client_is_at_fault(case: str) -> None:
    served, ask = CLIENTS[case]
    with serve(served, properties=offered()) as server:
        with pytest.raises(DmEnvRpcError) as caught:
            ask(server)
        assert caught.value.code in (code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND)
        check_books(server, 0, server.stats().refusals)
        assert server.stats().refusals > 0


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


def test_a_factory_that_fails_without_settings_is_at_fault() -> None:
    def broken(**settings: Any) -> Echo:
        raise ValueError("no device")

    with serve(broken) as server:
        with pytest.raises(DmEnvRpcError, match="no device") as caught:
            make(server.address)
        assert caught.value.code == code_pb2.INTERNAL
        check_books(server, 1)
        with pytest.raises(DmEnvRpcError, match="does not take these settings: no device"):
            make(server.address, {"size": 1})
        check_books(server, 1, 1)


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
