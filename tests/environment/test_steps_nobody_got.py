"""What a lost TimeStep shows after steps that were answered, but that their caller never got."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    AsyncDmEnvAdaptor,
    BatchedEnvironment,
    DmEnvAdaptor,
    Restart,
    make,
    make_async,
)
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import FaultProxy
from tests.support.environments import Echo
from tests.support.serving import serving

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

TRANSPORTS = ["http2"]

RESTART = Restart(attempts=3, backoff=0.01)

echo = serving(Echo)


@pytest.fixture
def lossy(echo: Server) -> Iterator[FaultProxy]:
    with FaultProxy(echo.address) as proxy:
        yield proxy


class Cancelling(AsyncDmEnvAdaptor):
    """Cancels a task as soon as the answer to a step of it has been read."""

    cancels: asyncio.Task[Any] | None = None

    def discount(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
        cancelled, self.cancels = self.cancels, None
        if cancelled is not None:
            cancelled.cancel()
        return super().discount(state, step_type, observations)


async def cancelled(env: Cancelling, call: Any) -> None:
    """Make a call that is cancelled when its answer has arrived."""
    env.cancels = asyncio.ensure_future(call)
    with pytest.raises(asyncio.CancelledError):
        await env.cancels
    assert env.cancels is None


def made_async(address: str, use: Callable[[Cancelling], Any], **create: Any) -> None:
    async def run() -> None:
        env: Any = await make_async(
            address, create, restart=RESTART, adaptor_class=Cancelling, arrays="numpy"
        )
        async with env:
            await env.reset()
            await use(env)

    asyncio.run(run())


def check_lost(lost: dm_env.TimeStep, value: int) -> None:
    """Check a TimeStep that stands for a lost step, after one that showed `value`."""
    assert (lost.step_type, lost.reward, lost.discount) == (dm_env.StepType.LAST, 0.0, 1.0)
    assert lost.observation == {"value": value}


CANCELLED: dict[str, Callable[[Cancelling], Any]] = {
    "step": lambda env: env.step({"value": 2}),
    "unroll": lambda env: env.unroll({"value": [2, 3, 4]}, ahead=1),
}


@pytest.mark.parametrize("length", [2, 9])
@pytest.mark.parametrize("call", CANCELLED)
def test_what_was_cancelled(echo: Server, call: str, length: int) -> None:
    """Also where the caller has not got the LAST TimeStep of a sequence of two steps."""

    async def use(env: Cancelling) -> None:
        for _ in range(2):
            await env.step({"value": 1})
            await cancelled(env, CANCELLED[call](env))
            lost, first = await asyncio.gather(env.step({"value": 5}), env.step({"value": 6}))
            check_lost(lost, 1)
            assert first.first()
        await env.step({"value": 1})
        await cancelled(env, CANCELLED[call](env))
        assert (await env.reset()).first()

    made_async(echo.address, use, length=length)


def interrupt_after(adaptor: Any, count: int) -> None:
    """Interrupt when the answers to so many steps have been read."""
    after = adaptor._after
    left = [count]

    def interrupt(timestep: dm_env.TimeStep) -> Any:
        left[0] -= 1
        found = after(timestep)
        if not left[0]:
            adaptor._after = after
            raise KeyboardInterrupt
        return found

    adaptor._after = interrupt


@contextlib.contextmanager
def made(address: str, **create: Any) -> Iterator[DmEnvAdaptor]:
    with make(address, create, restart=RESTART) as env:
        env.reset()
        env.step({"value": 1})
        yield env


STEPS = [{"value": 2}, {"value": 3}, {"value": 4}]


@pytest.mark.parametrize(
    ("call", "answers", "shown"),
    [
        (lambda env: env.step({"value": 2}), 1, 1),
        (lambda env: env.unroll(STEPS, ahead=1), 3, 1),
        (lambda env: list(env.rollout(STEPS, ahead=1)), 2, 2),
    ],
    ids=["step", "unroll", "rollout"],
)
def test_what_was_interrupted(
    echo: Server, call: Callable[[DmEnvAdaptor], object], answers: int, shown: int
) -> None:
    with made(echo.address) as env:
        interrupt_after(env, answers)
        with pytest.raises(KeyboardInterrupt):
            call(env)
        check_lost(env.step({"value": 5}), shown)
        assert env.step({"value": 6}).first()


def test_a_rollout_that_is_left_early(lossy: FaultProxy) -> None:
    with made(lossy.address) as env:
        steps: Any = env.rollout({"value": value} for value in range(2, 99))
        assert [int(next(steps).observation["value"]) for _ in range(2)] == [2, 3]
        steps.close()
        assert env.submit_step({"value": 99}).exception() is None  # All have arrived.
        lossy.reset()
        check_lost(env.step({"value": 100}), 3)


def test_futures_that_nobody_asked_for(lossy: FaultProxy) -> None:
    with made(lossy.address) as env:
        got, *others = [env.submit_step({"value": value}) for value in (2, 3, 4)]
        assert got.result().observation == {"value": 2}
        assert others[-1].exception() is None  # It has arrived.
        lossy.reset()
        check_lost(env.step({"value": 5}), 2)


@pytest.mark.parametrize("num_batches", [0, 1])
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_rows(
    echo: Server, monkeypatch: pytest.MonkeyPatch, num_batches: int, count: int
) -> None:
    # A step in which the sequences of some rows end.
    settings = [{"length": 2 + index} for index in range(count)]
    with BatchedEnvironment(
        echo.address, count, settings, num_batches=num_batches, restart=RESTART
    ) as env:

        def interrupt(*_: object) -> NoReturn:
            raise KeyboardInterrupt

        env.reset()
        env.step({"value": np.full(count, 1)})
        with monkeypatch.context() as patching:
            patching.setattr(env, "_timestep", interrupt)
            with pytest.raises(KeyboardInterrupt):
                env.step({"value": np.full(count, 2)})
        lost = env.step({"value": np.full(count, 3)})
        assert lost.last().all()
        assert lost.observation["value"].tolist() == [1] * count
        assert lost.reward.tolist() == [0.0] * count
        assert env.step({"value": np.full(count, 4)}).first().all()


def test_an_interrupted_step_of_a_gymnasium_environment(echo: Server) -> None:
    env: Any = make_remote(echo.address, restart=RESTART)
    with contextlib.closing(env):
        env.reset()
        env.step(1)
        interrupt_after(env.unwrapped.environment, 1)
        with pytest.raises(KeyboardInterrupt):
            env.step(2)
        observation, reward, _, truncated, info = env.step(3)
        assert (observation, reward, truncated, info["restarted"]) == (1, 0.0, True, True)
