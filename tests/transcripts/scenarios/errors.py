"""Environments that raise or break their promises, and requests that are wrong on the wire."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2

import dm_env_rpc_client as d
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.transcripts.environments import Counter, Wrong
from tests.transcripts.scenarios.playing import act, acts
from tests.transcripts.scene import Scenario, Scene

WRONG = (
    "reset returns None", "reset is LAST", "an observation too few", "an observation too many",
    "another shape", "another dtype", "step returns None", "step is FIRST", "step is 7",
    "out of bounds", "a reward of text", "a discount of its own", "complex numbers",
    "names that are one", "the name reward",
)  # fmt: skip


def fails(scene: Scene, serving: Any, settings: dict[str, Any]) -> None:
    """Each method of an environment, of which one raises; and a second sequence after it."""
    with d.connect(scene.serve(serving)) as connection, scene.fails("make"):
        world = d.create_world(connection, settings)
        env = d.join_world(connection, world)
        for name in ("reset", "step", "step", "reset", "step"):
            with scene.fails(name):
                scene.see(name, env.reset() if name == "reset" else env.step(act(2)))
        env.close()
        with scene.fails("destroy"):
            d.destroy_world(connection, world)


def broken(scene: Scene, what: str, rows: bool = False) -> None:
    address = scene.serve(functools.partial(Wrong, what))
    with scene.fails("make"), d.make(address, {"num_envs": 2} if rows else {}) as env:
        for name in ("reset", "step"):
            with scene.fails(name):
                action = {"a": [1, 2]} if rows else {"a": 1}
                scene.see(name, env.reset() if name == "reset" else env.step(action))


def row_fails(scene: Scene, settings: Any, num_batches: int | None) -> None:

    class Late(Counter):
        """The one that fails waits for the other: both are opened at once."""

        made = threading.Event()

        def __init__(self, **row: Any):
            if row.get("fails_in") == "__init__":
                self.made.wait(60)
            super().__init__(**row)

    address = scene.serve(Late)
    batched = functools.partial(d.BatchedEnvironment, address, 2, num_batches=num_batches)
    with scene.fails("open"), batched(settings) as envs:
        for name in ("reset", "step", "step", "step", "reset", "step"):
            with scene.fails(name):
                scene.see(name, envs.reset() if name == "reset" else envs.step(acts(1, 2)))


ROWS: dict[str, list[dict[str, Any]]] = {
    "step": [{"fails_at": 0}, {"fails_at": 2}],
    "each step": [{"fails_in": ""}, {"fails_in": "step"}],
    "reset": [{"fails_in": ""}, {"fails_in": "reset"}],
    "constructor": [{"fails_in": ""}, {"fails_in": "__init__"}],
    "close": [{"fails_in": ""}, {"fails_in": "close"}],
}


def ahead_of_an_error(scene: Scene) -> None:
    with d.make(scene.serve(Counter), {"fails_at": 3}) as env:
        env.reset()
        futures = [env.submit_step(act(step)) for step in range(5)]
        for future in futures:
            with scene.fails("step"):
                scene.see("step", future.result(60))
        with scene.fails("unroll"):
            scene.see("unroll", env.unroll([act(step) for step in range(3)]).reward)


async def made_in_vain(scene: Scene) -> None:
    """What was created is destroyed, and what was joined is left."""
    address = scene.serve(Counter)
    with scene.fails("threads"):
        d.make(address, requested_observations=["nowhere"])
    with scene.fails("asyncio"):
        await d.make_async(address, requested_observations=["nowhere"])
    for settings in ({"fails_in": "__init__"}, {"length": 0}):
        with scene.fails("asyncio"):
            await d.make_async(address, settings)
    connection = await d.connect_async(address)
    with scene.fails("a connection of its own"):
        await d.create_and_join_world_async(connection, {}, {}, requested_observations=["nowhere"])
    env, world = await d.create_and_join_world_async(connection, {}, {})
    await env.close()
    await d.destroy_world_async(connection, world)
    await connection.close()


def raw(scene: Scene, address: str, requests: Sequence[Any]) -> None:
    """A client of grpcio alone, which sends one request after the other."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.stream_stream(
            "/dm_env_rpc.v1.Environment/Process",
            lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        )
        answered = _Turns(requests)
        try:
            for _ in call(answered):
                answered.let()
        except grpc.RpcError:
            return


class _Turns:
    """Requests, of which each is sent when the one before was answered."""

    def __init__(self, requests: Sequence[Any]):
        import queue

        self._left = list(requests)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.let()

    def let(self) -> None:
        self._queue.put(self._left.pop(0) if self._left else None)

    def __iter__(self) -> _Turns:
        return self

    def __next__(self) -> Any:
        request = self._queue.get()
        if request is None:
            raise StopIteration
        return request


def step_of(actions: dict[int, Any], requested: Sequence[int] = ()) -> Request:
    packed = {uid: d.pack_tensor(*value) if isinstance(value, tuple) else value
              for uid, value in actions.items()}  # fmt: skip
    return Request(step=pb.StepRequest(actions=packed, requested_observations=requested))


def raw_requests(scene: Scene) -> None:
    """What no client of this package sends."""
    import numpy as np

    create = Request(create_world=pb.CreateWorldRequest())
    join = Request(join_world=pb.JoinWorldRequest(world_name="world-1"))
    address = scene.serve(Counter)
    raw(
        scene,
        address,
        [
            Request(),
            b"\x7a\x00",
            step_of({}),
            Request(reset=pb.ResetRequest()),
            create,
            Request(join_world=pb.JoinWorldRequest(world_name="world-0")),
            join,
            step_of({}, [1]),
            step_of({1: (1, np.int64)}, [1, 1, 2]),
            step_of({99: (1, np.int64)}, [1]),
            step_of({}, [99]),
            step_of({1: (1, np.int32)}, [1]),
            step_of({1: (1.5, np.float32)}, [1]),
            step_of({1: ([1, 2], np.int64)}, [1]),
            step_of({1: (99, np.int64)}, [1]),
            step_of({1: pb.Tensor()}, [1]),
            step_of({1: (1, np.int64), 2: ([1, 2], np.float32), 3: ("x",)}, [7, 6, 5, 4, 3, 2, 1]),
            step_of({1: (1, np.int64), 2: ([1], np.float32), 3: ("x",)}, [1]),
            step_of({1: (1, np.int64), 2: pb.Tensor(floats={"array": [1.5]}, shape=[2]), 3: ("",)}),
            join,
            create,
            Request(reset=pb.ResetRequest(settings={"": d.pack_tensor(1)})),
            Request(leave_world=pb.LeaveWorldRequest()),
            Request(leave_world=pb.LeaveWorldRequest()),
        ],
    )
    raw(scene, address, [create, b"\xff\xff\xff"])


Script = Callable[[Request], Response | None]


def scripted(scene: Scene, script: Script) -> str:
    """A server that answers as a function says, until that returns None."""

    def answer(requests: Any, context: Any) -> Any:
        for request in requests:
            response = script(request)
            if response is None:
                return
            yield response

    return scene.tap(scene.stack.enter_context(ScriptedServer(answer)).address)


SPECS = pb.ActionObservationSpecs(
    actions={1: pb.TensorSpec(name="a", dtype=pb.INT32)},
    observations={4: pb.TensorSpec(name="o", dtype=pb.INT32, shape=[2])},
)


def usual(request: Request, state: int = 1) -> Response:
    """The answer of a good server, whose one world has no rules."""
    kind = str(request.WhichOneof("payload"))
    response = Response()
    getattr(response, kind).SetInParent()
    if kind == "create_world":
        response.create_world.world_name = "world"
    elif kind in ("join_world", "reset"):
        getattr(response, kind).specs.CopyFrom(SPECS)
    elif kind == "step":
        response.step.MergeFromString(bytes([0x08, state]))
        for uid in request.step.requested_observations:
            response.step.observations[uid].CopyFrom(d.pack_tensor([1, 2], "int32"))
    return response


def refusing(kinds: Sequence[str], code: int = 9) -> Script:
    def script(request: Request) -> Response:
        if request.WhichOneof("payload") in kinds:
            return Response(error=status_pb2.Status(code=code, message="not now"))
        return usual(request)

    return script


def wrong_answers(scene: Scene) -> None:
    """What servers may not answer, and what the client does then: another step, and `close`."""

    def tensor(value: Any, dtype: str = "int32") -> Any:
        def script(request: Request) -> Response:
            response = usual(request)
            if request.WhichOneof("payload") == "step":
                response.step.observations[4].CopyFrom(d.pack_tensor(value, dtype))
            return response

        return script

    def in_state(state: int) -> Script:
        return lambda request: usual(request, state)

    def kind(request: Request) -> Response:
        if request.WhichOneof("payload") == "step":
            return Response(leave_world=pb.LeaveWorldResponse())
        return usual(request)

    def end(request: Request) -> Response | None:
        return None if request.WhichOneof("payload") == "step" else usual(request)

    scripts = {
        "another dtype": tensor([1, 2], "int64"),
        "another shape": tensor([1, 2, 3]),
        "a first step that TERMINATED": in_state(2),
        "no state": in_state(0),
        "an unknown state": in_state(7),
        "another kind": kind,
        "the end of the stream": end,
        "steps refused": refusing(["step"]),
        "leaving refused": refusing(["leave_world"]),
        "destroying refused": refusing(["destroy_world"]),
        "joining refused": refusing(["join_world"]),
        "creating refused": refusing(["create_world"], 8),
    }
    for name, script in scripts.items():
        with scene.fails(name):
            env = d.make(scripted(scene, script))
            try:
                for _ in range(2):
                    with scene.fails("step"):
                        scene.see("step", env.step({"a": 1}))
            finally:
                env.close()


def no_reset(scene: Scene) -> None:
    """A server that knows no Reset: the client leaves the world and joins it again."""
    with d.make(scripted(scene, refusing(["reset"], 12))) as env:
        env.reset()
        scene.see("step", env.step({"a": 1}))
        scene.see("reset", env.reset())
        with scene.fails("settings"):
            env.reset({"n": 1})


class Unclosable(Counter):
    """Raises as it is closed, once it is replaced."""

    def close(self) -> None:
        raise RuntimeError("cannot be closed")


class Loud(Counter):
    """Has texts in its errors that are no ASCII, or are long."""

    def __init__(self, length: int = 0):
        raise RuntimeError("caf\u00e9\n\x1b[31m" + "x" * length)


def texts(scene: Scene) -> None:
    address = scene.serve(Loud)
    for length in (0, 3000):
        with scene.fails("make"):
            d.make(address, {"length": length})


SCENARIOS: dict[str, Scenario] = {
    **{
        f"raises in {method}": Scenario(
            functools.partial(fails, serving=Counter, settings={"fails_in": method})
        )
        for method in ("__init__", "reset", "step", "close")
    },
    "raises once": Scenario(functools.partial(fails, serving=Counter, settings={"fails_at": 1})),
    "raises where it is replaced": Scenario(
        functools.partial(fails, serving=Unclosable, settings={})
    ),
    **{f"wrong: {what}": Scenario(functools.partial(broken, what=what)) for what in WRONG},
    **{
        f"wrong, in rows: {what}": Scenario(functools.partial(broken, what=what, rows=True))
        for what in ("reset is LAST", "another shape", "step returns None")
    },
    **{
        f"a row raises in its {name}{where}": Scenario(
            functools.partial(row_fails, settings=settings, num_batches=num_batches)
        )
        for name, settings in ROWS.items()
        for where, num_batches in {"": None, ", on streams": 0}.items()
    },
    "steps ahead": Scenario(ahead_of_an_error),
    "made in vain": Scenario(made_in_vain),
    "a raw client": Scenario(raw_requests, by_hand=False),
    "wrong answers": Scenario(wrong_answers, by_hand=False),
    "a server without Reset": Scenario(no_reset, by_hand=False),
    "texts": Scenario(texts),
}  # fmt: skip
