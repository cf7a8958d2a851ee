from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client.notebook.stepping import BYTES_PER_SECOND, Stepper
from dm_env_rpc_client.server import Catch
from dm_env_rpc_client.tensors.displays.progress import MAX_REMEMBERED, Progress
from tests.notebook.waiting import wait_for


class Reports:
    """What a stepper told of its progress, and how large each report was."""

    def __init__(self, size: int = 0):
        self.size = size
        self.times: list[float] = []
        self.progress = Progress()

    def __call__(self, progress: Progress) -> int:
        self.times.append(time.monotonic())
        self.progress = progress
        return self.size


def stay(_: dm_env.TimeStep) -> Any:
    return {"paddle": 1}


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def stepper(reports: Reports) -> Iterator[Stepper]:
    stepper = Stepper(Catch(rows=5, seed=0), stay, reports)
    yield stepper
    stepper.close()
    assert not stepper._thread.is_alive()


def test_steps_of_another_thread_are_shown_together(reports: Reports) -> None:
    env = Catch(rows=500, seed=0)
    stepper = Stepper(env, stay, reports)
    env.reset()
    for _ in range(300):
        env.step(stay(env))
    wait_for(lambda: reports.progress.steps == 300, "300 steps")
    assert reports.progress.episode == 1
    assert len(reports.times) < 100
    stepper.close()
    env.step(stay(env))
    assert reports.progress.steps == 300


def test_threads_wait_for_each_other(reports: Reports) -> None:
    inside: list[str] = []

    class Slow(Catch):
        def step(self, action: Any) -> dm_env.TimeStep:
            inside.append("in")
            time.sleep(0.001)  # So that another thread would come.
            inside.append("out")
            return super().step(action)

    env = Slow(rows=1000, seed=0)
    stepper = Stepper(env, stay, reports, rate=1000.0)
    env.reset()
    stepper.run()
    for _ in range(50):
        env.step(stay(env))
    wait_for(lambda: reports.progress.steps > 60, "steps of both")
    stepper.close()
    assert inside[::2] == ["in"] * (len(inside) // 2)
    assert inside[1::2] == ["out"] * (len(inside) // 2)


def test_explorers_of_one_environment_are_closed_in_any_order() -> None:
    env, first, second = Catch(seed=0), Reports(), Reports()
    steppers = [Stepper(env, stay, reports) for reports in (first, second)]
    env.reset()
    wait_for(lambda: first.progress.episode == second.progress.episode == 1, "both")
    steppers[0].close()
    env.reset()
    wait_for(lambda: second.progress.episode == 2, "the second")
    assert first.progress.episode == 1
    steppers[1].close()
    env.reset()
    assert second.progress.episode == 2


def test_a_run_keeps_its_rate(stepper: Stepper, reports: Reports) -> None:
    stepper.rate = 20.0
    times: list[float] = []

    def note(_: dm_env.TimeStep) -> Any:
        times.append(time.monotonic())
        return {"paddle": 1}

    stepper._choose = note
    stepper.run()
    wait_for(lambda: len(times) >= 8, "eight steps")
    stepper.stop()
    # Seven intervals of 0.05 s; the first step may have been late.
    assert times[7] - times[0] > 0.2


def test_reports_of_a_fast_run_are_few_and_large_ones_fewer() -> None:
    counts = []
    for size in (0, BYTES_PER_SECOND // 4):
        reports = Reports(size)
        stepper = Stepper(Catch(), stay, reports)
        stepper.rate = 1000.0
        started = time.monotonic()
        stepper.run()
        time.sleep(0.6)  # What is reported in this time is counted.
        stepper.close()
        seconds = time.monotonic() - started
        counts.append(len(reports.times) / seconds)
        assert len(reports.times) <= seconds / 0.05 + 3
    assert counts[1] <= 8


class Slow(Catch):
    """Waits in every step until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def step(self, action: Any) -> dm_env.TimeStep:
        assert self.go.wait(20)
        return super().step(action)


def test_nobody_waits_for_a_slow_environment(reports: Reports) -> None:
    env = Slow()
    stepper = Stepper(env, stay, reports)
    stepper.reset()
    started = time.monotonic()
    for _ in range(3):
        stepper.step(stay)
    stepper.run()
    stepper.stop()
    assert time.monotonic() - started < 10.0
    assert stepper.is_busy
    env.go.set()
    wait_for(lambda: reports.progress.steps == 3, "the steps that had been asked for")
    env.go.clear()
    stepper.step(stay)
    started = time.monotonic()
    stepper.close()
    assert time.monotonic() - started < 15.0
    env.go.set()
    stepper._thread.join(10)
    assert not stepper._thread.is_alive()


def test_a_report_that_fails_does_not_end_the_stepping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[int] = []

    def report(progress: Progress) -> int:
        steps.append(progress.steps)
        raise OSError("the page is gone")

    stepper = Stepper(Catch(), stay, report)
    stepper.reset()
    stepper.step(stay)
    wait_for(lambda: steps[-1:] == [1], "the step")
    stepper.close()
    assert "the page is gone" in caplog.text


def test_memory_of_long_runs_is_bounded() -> None:
    progress = Progress()
    for number in range(2 * MAX_REMEMBERED):
        progress.begin(dm_env.restart(None))
        progress.advance(None, dm_env.transition(0.0, None))
        progress.advance(None, dm_env.termination(float(number), None))
    assert (progress.total_steps, progress.finished) == (4 * MAX_REMEMBERED, 2 * MAX_REMEMBERED)
    assert len(progress.returns) == len(progress.rewards) == MAX_REMEMBERED
    assert list(progress.rewards)[-2:] == [0, progress.returns[-1]] == [0, number]
    assert list(progress.begins)[-2:] == [True, False]


def test_a_reward_that_is_an_array_counts_as_its_sum() -> None:
    progress = Progress()
    progress.begin(dm_env.restart(None))
    progress.advance(None, dm_env.transition(np.array([1.0, 2.0]), None))
    assert list(progress.rewards) == [3.0]
