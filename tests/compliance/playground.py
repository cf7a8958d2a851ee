"""A correct server on the modules of PyPI's dm-env-rpc, in parts that can be broken.

Several worlds, several agents in each, every agent in a sequence of its own; actions of
many kinds that are observed again. Subclasses of Session and Worlds break one thing each.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import (
    dm_env_rpc_pb2_grpc,
    spec_manager,
    tensor_spec_utils,
    tensor_utils,
)
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

FORCE, GRIP, PATH, SPEECH, FLAGS = 1, 2, 3, 4, 5
SEEN_FORCE, SEEN_PATH, HEARD, STEPS, REWARD, PICTURE = 11, 12, 13, 14, 15, 16

LENGTH = 5
"""Steps of a sequence after its first."""

WAIT_SECONDS = 20.0
"""A test that goes wrong must not wait for ever."""

# Bounds per element: in another order than row-major every value is outside.
LOWEST = np.arange(6, dtype=np.float32).reshape(2, 3) * 10
HIGHEST = LOWEST + 5


def spec(
    name: str, dtype: Any, shape: Iterable[int] = (), low: Any = None, high: Any = None
) -> Any:
    made = pb2.TensorSpec(name=name, dtype=dtype, shape=shape)
    if low is not None or high is not None:
        tensor_spec_utils.set_bounds(made, low, high)
    return made


def make_specs() -> Any:
    data_type = pb2.DataType
    return pb2.ActionObservationSpecs(
        actions={
            FORCE: spec("arm.force", data_type.FLOAT, [2, 3], LOWEST, HIGHEST),
            GRIP: spec("arm.grip", data_type.INT32, (), 0, 4),
            PATH: spec("path", data_type.DOUBLE, [2, -1], -1.0, 1.0),
            SPEECH: spec("speech", data_type.STRING),
            FLAGS: spec("flags", data_type.BOOL, [4]),
        },
        observations={
            SEEN_FORCE: spec("arm.force", data_type.FLOAT, [2, 3], LOWEST, HIGHEST),
            SEEN_PATH: spec("path", data_type.DOUBLE, [2, -1], -1.0, 1.0),
            HEARD: spec("heard", data_type.STRING),
            STEPS: spec("steps", data_type.INT64, (), 0, LENGTH),
            REWARD: spec("reward", data_type.FLOAT),
            PICTURE: spec("picture", data_type.UINT8, [3, 2]),
        },
    )


class RequestError(Exception):
    def __init__(self, message: str, code: int = code_pb2.INVALID_ARGUMENT):
        super().__init__(message)
        self.code = code


class World:
    def __init__(self) -> None:
        self.agents: list[Session] = []


class Worlds:
    """The worlds of a server, by name."""

    max_agents = 4

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.worlds: dict[str, World] = {}
        self.numbers = itertools.count()

    def create(self, settings: Mapping[str, Any]) -> str:
        for name in settings:
            if name != "seed":
                raise RequestError(f"no create setting {name!r}")
        name = f"playground-{next(self.numbers)}"
        self.worlds[name] = World()
        return name

    def find(self, name: str) -> World:
        if name not in self.worlds:
            raise RequestError(f"no world {name!r}", code_pb2.NOT_FOUND)
        return self.worlds[name]

    def destroy(self, name: str) -> None:
        if self.find(name).agents:
            raise RequestError(f"world {name!r} has agents", code_pb2.FAILED_PRECONDITION)
        del self.worlds[name]

    def reset(self, name: str, caller: Session) -> None:
        """Returns when every agent but the caller was told."""
        told = []
        for agent in self.find(name).agents:
            if agent is caller:
                agent.running = False
            elif agent.running:
                agent.interrupted = True
                told.append(agent)
        self.changed.wait_for(lambda: not any(agent.interrupted for agent in told), WAIT_SECONDS)


class Session:
    """One connection. `answers` yields what is sent for a request."""

    worlds_class: type[Worlds] = Worlds

    def __init__(self, worlds: Any):
        self.worlds = worlds
        self.world: World | None = None
        self.world_name = ""
        self.running = False
        self.interrupted = False
        self.steps = 0

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            yield from self.answers(request)

    def answers(self, request: Any) -> Iterator[Any]:
        response = pb2.EnvironmentResponse()
        kind = request.WhichOneof("payload")
        try:
            with self.worlds.changed:
                payload = self.carry_out(kind, getattr(request, str(kind), None))
            getattr(response, kind).SetInParent()
            getattr(response, kind).MergeFrom(payload)
        except RequestError as error:
            response.error.CopyFrom(status_pb2.Status(code=error.code, message=str(error)))
        yield from self.sent(response, response.WhichOneof("payload"))

    def sent(self, response: Any, kind: str) -> Iterable[Any]:
        """What is sent for a request that was carried out, or not: `kind` is "error" then."""
        return [response]

    def carry_out(self, kind: str | None, request: Any) -> Any:
        if kind is None:
            raise RequestError("the request is empty")
        return getattr(self, f"on_{kind}")(request)

    def on_create_world(self, request: Any) -> Any:
        return pb2.CreateWorldResponse(world_name=self.worlds.create(request.settings))

    def on_destroy_world(self, request: Any) -> Any:
        self.worlds.destroy(request.world_name)
        return pb2.DestroyWorldResponse()

    def on_join_world(self, request: Any) -> Any:
        if self.world is not None:
            raise RequestError("joined already", code_pb2.FAILED_PRECONDITION)
        world = self.worlds.find(request.world_name)
        for name in request.settings:
            raise RequestError(f"no join setting {name!r}")
        if len(world.agents) >= self.worlds.max_agents:
            raise RequestError("the world is full", code_pb2.FAILED_PRECONDITION)
        self.world, self.world_name = world, request.world_name
        world.agents.append(self)
        self.running = False
        return pb2.JoinWorldResponse(specs=self.specs())

    def specs(self) -> Any:
        return make_specs()

    def on_leave_world(self, request: Any) -> Any:
        self.leave()
        return pb2.LeaveWorldResponse()

    def leave(self) -> None:
        if self.world is not None:
            self.world.agents.remove(self)
            self.world, self.running, self.interrupted = None, False, False
            self.worlds.changed.notify_all()

    def check_joined(self) -> None:
        if self.world is None:
            raise RequestError("not joined to a world", code_pb2.FAILED_PRECONDITION)

    def on_reset(self, request: Any) -> Any:
        self.check_joined()
        for name in request.settings:
            if name != "length":
                raise RequestError(f"no reset setting {name!r}")
        self.end_sequence()
        return pb2.ResetResponse(specs=self.specs())

    def end_sequence(self) -> None:
        self.running = self.interrupted = False
        self.worlds.changed.notify_all()

    def on_reset_world(self, request: Any) -> Any:
        self.worlds.reset(request.world_name, self)
        return pb2.ResetWorldResponse()

    def on_extension(self, request: any_pb2.Any) -> Any:
        raise RequestError("no extensions", code_pb2.UNIMPLEMENTED)

    def on_step(self, request: Any) -> Any:
        self.check_joined()
        requested = set(request.requested_observations)
        self.check_requested(requested)
        if self.interrupted:
            self.end_sequence()
            state = pb2.INTERRUPTED
        elif not self.running:
            self.begin()
            state = pb2.RUNNING
        else:
            actions = self.unpack(request.actions)
            state = self.act(actions)
        return pb2.StepResponse(state=state, observations=self.observe(requested))

    def check_requested(self, requested: set[int]) -> None:
        for uid in requested:
            if uid not in make_specs().observations:
                raise RequestError(f"no observation {uid}")

    def begin(self) -> None:
        self.running, self.steps = True, 0
        self.force, self.path, self.said = LOWEST, np.zeros((2, 1)), ""

    def act(self, actions: Mapping[str, Any]) -> int:
        self.steps += 1
        self.force = actions.get("arm.force", self.force)
        self.path = actions.get("path", self.path)
        self.said = str(actions.get("speech", self.said))
        if self.steps < LENGTH:
            return int(pb2.RUNNING)
        self.running = False
        return self.end_state()

    def end_state(self) -> int:
        return int(pb2.TERMINATED)

    def unpack(self, tensors: Mapping[int, Any]) -> dict[str, Any]:
        unpacked = {}
        for uid, tensor in tensors.items():
            action = make_specs().actions.get(uid)
            self.check_uid(uid)
            if action is None:
                continue
            self.check_type(action, tensor)
            value = self.to_array(tensor)
            self.check_shape(action, value)
            self.check_bounds(action, value)
            unpacked[action.name] = value
        return unpacked

    def check_uid(self, uid: int) -> None:
        if uid not in make_specs().actions:
            raise RequestError(f"no action {uid}")

    def check_type(self, action: Any, tensor: Any) -> None:
        try:
            is_right = tensor_utils.get_tensor_type(tensor) == (
                tensor_utils.data_type_to_np_type(action.dtype)
            )
        except TypeError:
            is_right = False
        if not is_right:
            raise RequestError(f"{action.name} has another type")

    def to_array(self, tensor: Any) -> Any:
        if sum(size < 0 for size in tensor.shape) > 1:
            raise RequestError("two variable dimensions")
        try:
            return tensor_utils.unpack_tensor(tensor)
        except ValueError as error:
            raise RequestError(str(error)) from error

    def check_shape(self, action: Any, value: Any) -> None:
        shape = np.shape(value)
        if len(shape) != len(action.shape) or any(
            its not in (mine, -1) for mine, its in zip(shape, action.shape, strict=True)
        ):
            raise RequestError(f"{action.name} has shape {shape}")

    def check_bounds(self, action: Any, value: Any) -> None:
        low, high = self.bounds(action)
        if low is not None and not (np.all(value >= low) and np.all(value <= high)):
            raise RequestError(f"{action.name} is out of range")

    def bounds(self, action: Any) -> tuple[Any, Any]:
        if not action.HasField("min"):
            return None, None
        if action.name == "arm.force":
            return LOWEST, HIGHEST
        found = tensor_spec_utils.bounds(action)
        return found.min, found.max

    def observe(self, requested: set[int]) -> Any:
        values = {
            "arm.force": self.force,
            "path": self.path,
            "heard": self.said,
            "steps": self.steps,
            "reward": float(self.steps),
            "picture": np.arange(6).reshape(3, 2),
        }
        manager = spec_manager.SpecManager(make_specs().observations)
        packed = manager.pack(values)
        return {uid: packed[uid] for uid in requested}

    def gone(self) -> None:
        with self.worlds.changed:
            self.leave()


class Servicer(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    def __init__(self, session_class: type[Session]):
        self._session_class = session_class
        self._worlds = session_class.worlds_class()

    def Process(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        session = self._session_class(self._worlds)
        # At once, also where a request of the stream is being carried out.
        context.add_callback(session.gone)
        try:
            yield from session.stream(requests)
        finally:
            session.gone()


@contextlib.contextmanager
def serve(session_class: type[Session] = Session, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serves the playground, or a broken one, and yields the address."""
    executor = concurrent.futures.ThreadPoolExecutor(32)
    server = grpc.server(executor, options=[("grpc.so_reuseport", 0)])
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(Servicer(session_class), server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        server.stop(0.1).wait()
        executor.shutdown()
