"""Worlds, and the part of one connection in them; see tests/peers for what they do.

On the protocol's messages alone, and with nothing of the package that is tested but these.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.peers.grpcio.tensors import RequestError, conform, initial, integers

PROCESS = "Process"

STEPS_UID = 12
METADATA_UID = 13
DTYPES = ("float", "double", "int8", "int32", "int64", "uint8",
          "uint32", "uint64", "bool", "string", "proto")  # fmt: skip

Settings = Mapping[str, pb.Tensor]


def metadata_pairs(metadata: Any) -> list[str]:
    """The metadata of a call as `key=value`, values of `-bin` keys in hexadecimal."""
    return [
        f"{key}={value.hex() if isinstance(value, bytes) else value}" for key, value in metadata
    ]


def _integer(name: str, tensor: pb.Tensor) -> int:
    values = integers(name, tensor)
    if len(values) != 1 or values[0] < 0:
        raise RequestError(f"{name}: is one integer that is not negative")
    return values[0]


def _number(name: str, tensor: pb.Tensor) -> float:
    for array in (tensor.doubles.array, tensor.floats.array):
        if len(array) == 1:
            return array[0]
    return _integer(name, tensor)


_SETTINGS: dict[str, Callable[[str, pb.Tensor], Any]] = {
    "shape": integers,
    "length": _integer,
    "delay": _number,
}


def _refuse_settings(settings: Settings) -> None:
    for name in settings:
        raise RequestError(f"no setting {name!r} here")


class World:
    """One agent's; its lock is that of all worlds."""

    def __init__(self, name: str, settings: Settings):
        _refuse_settings({key: value for key, value in settings.items() if key not in _SETTINGS})
        values = {key: _SETTINGS[key](key, value) for key, value in settings.items()}
        self.name = name
        self.length: int = values.get("length", 0)
        self.delay: float = values.get("delay", 0.0)
        self.has_agent = self.is_running = self.is_interrupted = False
        self.steps = 0
        self.specs = _echo_specs(values.get("shape", [-1]))


def _echo_specs(shape: Sequence[int]) -> pb.ActionObservationSpecs:
    echoed = {
        number: pb.TensorSpec(name=name, dtype=pb.DataType.Name(number), shape=shape)
        for number, name in enumerate(DTYPES, 1)
    }
    others = {
        STEPS_UID: pb.TensorSpec(name="steps", dtype=pb.INT64),
        METADATA_UID: pb.TensorSpec(name="metadata", dtype=pb.STRING, shape=[-1]),
    }
    return pb.ActionObservationSpecs(actions=echoed, observations={**echoed, **others})


class Worlds:
    """The worlds of a server, by name, under one lock."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._by_name: dict[str, World] = {}
        self._numbers = itertools.count()

    def create(self, settings: Settings) -> str:
        world = World(f"world-{next(self._numbers)}", settings)
        self._by_name[world.name] = world
        return world.name

    def find(self, name: str) -> World:
        if name not in self._by_name:
            raise RequestError(f"no world {name!r}", grpc.StatusCode.NOT_FOUND)
        return self._by_name[name]

    def destroy(self, name: str) -> None:
        if self.find(name).has_agent:
            raise RequestError("the world has an agent", grpc.StatusCode.FAILED_PRECONDITION)
        del self._by_name[name]


class Session:
    """The part of one connection.

    Args:
      worlds: those of the server.
      metadata: of the call, as `key=value`.
      is_active: whether the client is still there.
    """

    def __init__(self, worlds: Worlds, metadata: list[str], is_active: Callable[[], bool]):
        self._worlds = worlds
        self._metadata = metadata
        self._is_active = is_active
        self._world: World | None = None
        self._acted: dict[int, pb.Tensor] = {}

    def answer(self, request: pb.EnvironmentRequest) -> pb.EnvironmentResponse:
        """The one answer to a request."""
        response = pb.EnvironmentResponse()
        kind = request.WhichOneof("payload")
        try:
            if kind is None:
                raise RequestError("the request is empty")
            if kind == "step" and self._world is not None:
                time.sleep(self._world.delay)  # It takes time to step.
            with self._worlds.changed:
                payload = getattr(self, f"_{kind}")(getattr(request, kind))
            getattr(response, kind).CopyFrom(payload)
        except RequestError as error:
            response.error.code = error.code
            response.error.message = str(error)
        return response

    def _create_world(self, request: pb.CreateWorldRequest) -> Any:
        return pb.CreateWorldResponse(world_name=self._worlds.create(request.settings))

    def _join_world(self, request: pb.JoinWorldRequest) -> Any:
        if self._world is not None:
            raise RequestError("joined already", grpc.StatusCode.FAILED_PRECONDITION)
        world = self._worlds.find(request.world_name)
        _refuse_settings(request.settings)
        if world.has_agent:
            raise RequestError("the world has its agent", grpc.StatusCode.FAILED_PRECONDITION)
        world.has_agent, world.is_running, world.steps = True, False, 0
        self._world = world
        return pb.JoinWorldResponse(specs=world.specs)

    def _leave_world(self, request: pb.LeaveWorldRequest) -> Any:
        if self._world is not None:
            self._world.has_agent = self._world.is_running = self._world.is_interrupted = False
            self._worlds.changed.notify_all()
        self._world = None
        self._acted = {}
        return pb.LeaveWorldResponse()

    def _destroy_world(self, request: pb.DestroyWorldRequest) -> Any:
        self._worlds.destroy(request.world_name)
        return pb.DestroyWorldResponse()

    def _extension(self, request: Any) -> Any:
        raise RequestError(f"no extension {request.type_url!r}", grpc.StatusCode.UNIMPLEMENTED)

    def _joined(self) -> World:
        if self._world is None:
            raise RequestError("not joined to a world", grpc.StatusCode.FAILED_PRECONDITION)
        return self._world

    def _step(self, request: pb.StepRequest) -> Any:
        world = self._joined()
        for uid in request.requested_observations:
            if uid not in world.specs.observations:
                raise RequestError(f"no observation {uid}")
        state = self._advance(world, request)
        response = pb.StepResponse(state=state)
        for uid in request.requested_observations:
            response.observations[uid].CopyFrom(self._observe(world, uid))
        return response

    def _advance(self, world: World, request: pb.StepRequest) -> Any:
        if world.is_interrupted:
            world.is_interrupted = world.is_running = False
            self._worlds.changed.notify_all()
            return pb.INTERRUPTED
        if not world.is_running:
            world.is_running, world.steps, self._acted = True, 0, {}
            return pb.RUNNING
        for uid, tensor in request.actions.items():
            if uid not in world.specs.actions:
                raise RequestError(f"no action {uid}")
            conform(world.specs.actions[uid], tensor)
        self._acted.update(request.actions)
        world.steps += 1
        if world.steps != world.length:
            return pb.RUNNING
        world.is_running = False
        return pb.TERMINATED

    def _observe(self, world: World, uid: int) -> pb.Tensor:
        if uid == STEPS_UID:
            return pb.Tensor(int64s=pb.Tensor.Int64Array(array=[world.steps]))
        if uid == METADATA_UID:
            strings = pb.Tensor.StringArray(array=self._metadata)
            return pb.Tensor(strings=strings, shape=[len(self._metadata)])
        if uid in self._acted:
            return self._acted[uid]
        return initial(world.specs.actions[uid])

    def _reset(self, request: pb.ResetRequest) -> Any:
        world = self._joined()
        settings = dict(request.settings)
        length = settings.pop("length", None)
        _refuse_settings(settings)
        if length is not None:
            world.length = _integer("length", length)
        world.is_running = world.is_interrupted = False
        self._worlds.changed.notify_all()
        return pb.ResetResponse(specs=world.specs)

    def _reset_world(self, request: pb.ResetWorldRequest) -> Any:
        world = self._worlds.find(request.world_name)
        _refuse_settings(request.settings)
        if world is self._world or not world.is_running:
            world.is_running = False
        else:
            world.is_interrupted = True
            while world.is_interrupted and self._is_active():
                self._worlds.changed.wait(0.1)
        return pb.ResetWorldResponse()

    def close(self) -> None:
        """What happens when the connection ends."""
        with self._worlds.changed:
            self._leave_world(pb.LeaveWorldRequest())
