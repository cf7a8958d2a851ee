"""Rows 6 and 7: no answer is lost in silence when the wait for it is interrupted or cancelled.

After that the connection is unusable, or the next wait returns the answer. A step that simply goes
on would skip one.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from dm_env_rpc_client import (
    AsyncDmEnvAdaptor,
    Connection,
    ConnectionLostError,
    DmEnvAdaptor,
    EnvironmentsFailedError,
    dm_env_rpc_pb2,
    make,
    make_async,
)
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.server import serve
from tests.reliability.connections.counting import WAYS, counting
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.both_transports import EVERY
from tests.support.programs import run_python

TRANSPORTS = EVERY

ACTION = {"value": 1}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(counting) as server:
        yield server.address


@pytest.mark.row(6)
@pytest.mark.parametrize("way", WAYS)
@counts(12, 500)
def test_interrupts_at_random_points_lose_no_answer(
    address: str, way: str, count: int, seen: Seen
) -> None:
    module = "tests.reliability.connections.counting"
    finished = run_python("-m", module, way, address, count, timeout=500)
    lost, failed, followed = map(int, finished.stdout.split())
    seen(interrupts=count, stale_or_lost_answers=lost, unusable_connections=failed)
    assert lost == 0
    assert failed > count / 2
    assert failed + followed == count


class Cancelling(AsyncDmEnvAdaptor):
    """Has a task cancelled when the answer to its step is read, before the task has it."""

    cancel: Any = None

    def reward(self, *_: Any, **__: Any) -> Any:
        if self.cancel is not None:
            self.cancel()
            self.cancel = None
        return 0.0


@pytest.mark.row(7)
@pytest.mark.parametrize("when", ["before it is woken", "after it was woken"])
async def test_a_cancel_after_the_answer_makes_the_connection_unusable(
    address: str, when: str
) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(20):
        async with await make_async(address, adaptor_class=Cancelling) as env:
            assert isinstance(env, Cancelling)
            await env.reset()
            step = asyncio.ensure_future(env.step(ACTION))
            env.cancel = (
                step.cancel
                if when == "before it is woken"
                else lambda step=step: loop.call_soon(step.cancel)
            )
            with pytest.raises(asyncio.CancelledError):
                await step
            assert isinstance(env.connection.poisoned_by, asyncio.CancelledError)
            with pytest.raises(ConnectionLostError, match="CancelledError"):
                await env.step(ACTION)


async def test_an_unroll_that_is_cancelled_while_it_waits_for_room_loses_no_step() -> None:
    # Actions of 1 MiB, of which at most 64 may be pending.
    with serve(functools.partial(counting, 1 << 17)) as server:
        async with await make_async(server.address) as env:
            await env.reset()
            actions = {"value": np.zeros((100, 1 << 17))}
            unrolled = asyncio.ensure_future(env.unroll(actions))
            while not env.connection._pipeline._line:
                await asyncio.sleep(0)
            unrolled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unrolled
            with pytest.raises(ConnectionLostError, match="CancelledError"):
                await env.step({})


class _Interrupt(BaseException):
    pass


class _InterruptedDeque(collections.deque[Any]):
    def popleft(self) -> Any:
        super().popleft()
        raise _Interrupt


def after(owner: Any, name: str, does: str = "") -> tuple[Any, str, Any]:
    """An interrupt when a method has done its work, or only that of another method."""
    method = getattr(owner, does or name)

    def do_and_interrupt(*arguments: Any, **keywords: Any) -> Any:
        method(*arguments, **keywords)
        raise _Interrupt

    return owner, name, do_and_interrupt


class Moment(NamedTuple):
    """When an interrupt comes: what has the step then is in no list that its end looks at.

    Attributes:
      opened: what is stepped.
      patch: of the package, for the interrupt.
      act: what is interrupted.
      rows: those that are lost.
    """

    opened: Callable[[str], Any]
    patch: tuple[Any, str, Any]
    act: Callable[[Any], object]
    rows: list[int] | None = None


ROWS = {"value": [1, 1, 1]}
streams = functools.partial(BatchedEnvironment, num_envs=3, num_batches=0)
batch = functools.partial(BatchedEnvironment, num_envs=3)
of_rows: dict[str, Callable[[Any], object]] = {
    "step": lambda env: env.step(ROWS),
    "send and recv": lambda env: (env.send(ROWS), env.recv(3)),
    "reset": lambda env: env.reset(),
}

REQUEST = dm_env_rpc_pb2.ResetRequest()

MOMENTS = {
    "a request is answered": Moment(
        make, after(Connection, "_call"), lambda env: env.connection.send(REQUEST)
    ),
    "a future is sent": Moment(
        make, after(Connection, "_send"), lambda env: env.connection.submit(REQUEST)
    ),
    "a step is sent": Moment(
        make, after(Connection, "_call", "_send"), lambda env: env.step(ACTION)
    ),
    "a step is answered": Moment(make, after(Connection, "_call"), lambda env: env.step(ACTION)),
    "a rollout is sent": Moment(
        make, after(DmEnvAdaptor, "_start_all"), lambda env: list(env.rollout([ACTION]))
    ),
    "a step of a rollout is taken": Moment(
        make,
        (collections, "deque", _InterruptedDeque),
        lambda env: list(env.rollout([ACTION])),
    ),
    "an unroll is sent": Moment(
        make, after(DmEnvAdaptor, "_start_all"), lambda env: env.unroll([ACTION])
    ),
    "an unroll is stacked": Moment(
        make, after(timesteps.Stack, "filled"), lambda env: env.unroll([ACTION] * 3)
    ),
    **{
        f"a row is sent by {name}": Moment(streams, after(DmEnvAdaptor, "_start_step"), act, [0])
        for name, act in of_rows.items()
    },
    **{
        f"{kind} are read by {name}": Moment(
            opened, after(BatchedEnvironment, "_timestep"), act, [0, 1, 2]
        )
        for kind, opened in (("streams", streams), ("rows", batch))
        for name, act in of_rows.items()
    },
}


@pytest.mark.row(6)
@pytest.mark.parametrize("name", MOMENTS)
def test_an_interrupt_at_the_worst_moment_makes_what_was_stepped_unusable(
    address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = MOMENTS[name]
    with moment.opened(address) as env:
        env.reset()
        with monkeypatch.context() as patched:
            patched.setattr(*moment.patch)
            with pytest.raises(_Interrupt):
                moment.act(env)
        errors = (ConnectionLostError, EnvironmentsFailedError)
        with pytest.raises(errors, match="_Interrupt") as failed:
            env.step(ACTION if moment.rows is None else ROWS)
        assert moment.rows is None or list(getattr(failed.value, "failures", ())) == moment.rows


def test_an_interrupt_of_recv_costs_no_row_that_is_idle_or_under_way(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BatchedEnvironment(address, 3, num_batches=0) as env:
        before = env.reset().observation["count"]
        env.send({"value": [1]}, [0])
        with monkeypatch.context() as patched:
            patched.setattr(*after(BatchedEnvironment, "_timestep"))
            with pytest.raises(_Interrupt):
                env.recv()
        env.send({"value": [1, 1]}, [1, 2])
        timestep, ids = env.recv(2)
        assert timestep.observation["count"].tolist() == (before[ids] + 1).tolist()
        with pytest.raises(EnvironmentsFailedError, match="_Interrupt"):
            env.send({"value": [1]}, [0])


def test_a_future_keeps_its_answer_when_a_wait_for_it_is_cancelled(
    address: str,
) -> None:
    async def wait_twice() -> None:
        with make(address) as env:
            before = env.reset().observation["count"]
            future = env.step_async(ACTION)
            waiting = asyncio.wrap_future(future)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await asyncio.wrap_future(future)).observation["count"] == before + 1
            assert env.step(ACTION).observation["count"] == before + 2

    asyncio.run(wait_twice())


def test_errors_of_an_answer_are_no_interrupts() -> None:
    class Undecided(DmEnvAdaptor):
        def reward(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    with serve(counting) as server, make(server.address, adaptor_class=Undecided) as env:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                env.step(ACTION)
        assert env.connection.is_usable
