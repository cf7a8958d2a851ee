"""Measures what a step costs, part by part, with few environments."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client import BatchedEnvironment, SpecError
from tests.benchmarks.cheap import PAYLOADS
from tests.scale.fakes import fake
from tests.scale.model import LARGEST_KEPT, Costs
from tests.scale.processes import Process, Turn, Usage, Watch, process, quietest, served, usage

__all__ = ["FEW", "MANY", "Gauge", "actions", "gauge", "measure", "opened"]

FEW, MANY = 16, 512
"""The environments that are stepped: what one costs is the slope, what a call costs is the rest.

With 128 instead, the processor's caches hold more of what a step needs than with 1,000: a step
takes a tenth less time."""

_LATENCY = 0.015
"""Long enough that all Steps are sent before the first answer comes."""

_QUIETEST = 0.25
"""The share of turns that count: those that were disturbed least."""

_SHORT_LATENCY = 0.001
_TAKEN = 10
"""The latency while `recv` and `send` take turns, and how many turns are measured at a time."""

_GAUGE, _GAUGED, _GAUGE_NAME = 256, 2, "gauge"
"""How many environments the gauge steps, and how often."""

_LARGE, _TOO_LARGE, _PILED = 0.8, 2.5, 0.3
"""Batches that are compared, in parts of `LARGEST_KEPT`, and the share of the rounds."""

_FILLED = 15
_ANSWERED = 40
_SERVED = 16
_HELD = 32
_MORE_HELD = 160
_HELD_STEPS = 3


def _many(payload: str) -> int:
    """Returns `MANY`, or fewer if a batch of so many would be in new memory each time."""
    return min(MANY, LARGEST_KEPT // _size(payload))


def _size(payload: str) -> int:
    shape, dtype = PAYLOADS[payload]
    return math.prod(shape) * np.dtype(dtype).itemsize


class _Turns(NamedTuple):
    turns: int
    steps: int
    seconds: float
    """Of the client's processor."""


@contextlib.contextmanager
def opened(address: str, count: int, payload: str, **settings: Any) -> Iterator[BatchedEnvironment]:
    """Opens environments with a payload, a stream each, and begins a sequence in each."""
    envs = BatchedEnvironment(
        address, count, {"payload": payload, **settings}, timeout=60.0, num_batches=0
    )
    try:
        envs.reset()
        yield envs
    finally:
        envs.close()


def actions(count: int) -> dict[str, Any]:
    """Returns valid actions."""
    return {"action": np.ones(count, np.int32)}


class Gauge:
    """Says how fast the client's processor is now, for steps with a payload.

    Attributes:
      reference: the seconds of the processor that a step took when the costs were measured.
    """

    def __init__(self, envs: BatchedEnvironment):
        self._envs = envs
        self._actions = actions(envs.num_envs)
        self.reference = math.nan

    def seconds(self) -> float:
        """Returns the seconds of the processor that a step takes."""
        found = []
        for _ in range(_GAUGED):
            begin = time.thread_time()
            self._envs.step(self._actions)
            found.append(time.thread_time() - begin)
        return min(found)

    def compared(self, *seconds: float) -> float:
        """Returns how many times as long steps take as when the costs were measured.

        Args:
          *seconds: what `seconds` returned.
        """
        return statistics.fmean(seconds) / self.reference


@contextlib.contextmanager
def gauge(payload: str) -> Iterator[Gauge]:
    """Opens environments of a fake server of its own, which answers at once."""
    with fake(payload) as server, opened(server.address, _GAUGE, payload) as envs:
        yield Gauge(envs)


def measure(payload: str, rounds: int, gauge: Gauge, progress: Callable[[str], object]) -> Costs:
    """Returns what a step costs.

    Args:
      payload: what is observed, a name of `PAYLOADS`.
      rounds: how many turns each measurement has.
      gauge: gets its reference.
      progress: is told what is being measured.
    """
    progress(f"{payload}: the client's side of a step")
    with fake(payload) as server, contextlib.ExitStack() as stack:
        server.answer_after(_LATENCY)
        contenders: dict[str, Callable[[], float]] = {_GAUGE_NAME: gauge.seconds}
        answering = {}
        pools = {}
        many = _many(payload)
        for count in (FEW, many):
            envs = stack.enter_context(opened(server.address, count, payload))
            contenders |= {f"{name} {count}": part for name, part in _parts(envs, count).items()}
            answering[count] = _answering(server, envs, rounds)
            pools[count] = envs
        begin = server.traffic()
        found = _in_turns(contenders, rounds)
        end = server.traffic()
        gauge.reference = found[_GAUGE_NAME]
        request, answer = ((end[i] - begin[i]) / (end.steps - begin.steps) for i in (1, 2))
        server.answer_after(_SHORT_LATENCY)
        turns = {count: _taking_turns(envs, gauge, server, rounds) for count, envs in pools.items()}

    def seconds(name: str) -> tuple[float, float]:
        """Of the client's processor: for an environment, and for a call."""
        of_few, of_many = (found[f"{name} {count}"] for count in (FEW, many))
        each = (of_many - of_few) / (many - FEW)
        return max(0.0, each), max(0.0, of_many - each * many)

    step, call = seconds("step")
    check, _ = seconds("check")
    send, _ = seconds("send")
    swap, turn = _line(turns[FEW], turns[many])
    progress(f"{payload}: the server's side of a step")
    serve = _serving(payload, rounds)
    progress(f"{payload}: memory")
    client_bytes, server_bytes = _memory(payload)
    return Costs(
        call=call,
        check=check,
        send=max(0.0, send - check),
        read=max(0.0, step - max(send, check)),
        turn=turn,
        swap=swap,
        fresh=_fresh(),
        piled=_piled(payload, gauge, rounds),
        serve=serve,
        fake=max(0.0, answering[many] - answering[FEW]) / (many - FEW),
        request_bytes=request,
        answer_bytes=answer,
        client_bytes=client_bytes,
        server_bytes=server_bytes,
    )


def _in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Has contenders take turns; returns the median of each in its quietest turns."""
    watch = Watch()
    found: dict[str, list[Turn[float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measured in contenders.items():
            found[name].append(watch.turn(measured))
    return {name: _typical(turns) for name, turns in found.items()}


def _typical(turns: Sequence[Turn[float]]) -> float:
    quiet = quietest(turns, math.ceil(len(turns) * _QUIETEST))
    return statistics.median(turn.found for turn in quiet)


def _parts(envs: BatchedEnvironment, count: int) -> dict[str, Callable[[], float]]:
    """Returns what measures the client's processor in the parts of a step."""
    clock = time.thread_time
    valid, invalid = actions(count), actions(count)
    invalid["action"][-1] = 7

    def step() -> float:
        begin = clock()
        envs.step(valid)
        return clock() - begin

    def check() -> float:
        begin = clock()
        try:
            envs.step(invalid)
        except SpecError:
            return clock() - begin
        raise AssertionError("an invalid action was sent")

    def send() -> float:
        begin = clock()
        envs.send(valid)
        took = clock() - begin
        envs.recv(count)
        return took

    return {"step": step, "check": check, "send": send}


def _taking_turns(envs: BatchedEnvironment, gauge: Gauge, server: Process, rounds: int) -> _Turns:
    """Measures the client's processor while `recv` and `send` take turns without a pause."""
    envs.send(actions(envs.num_envs))

    def measured() -> _Turns:
        before = gauge.seconds()
        begin, steps = time.thread_time(), 0
        for _ in range(_TAKEN):
            _, arrived = envs.recv()
            envs.send(actions(len(arrived)), arrived)
            steps += len(arrived)
        seconds = time.thread_time() - begin
        return _Turns(_TAKEN, steps, seconds / gauge.compared(before, gauge.seconds()))

    watch = Watch(server)
    turns = [watch.turn(measured) for _ in range(rounds)]
    quiet = quietest(turns, math.ceil(rounds * _QUIETEST))
    envs.reset()  # Drops the Steps that are under way.
    return _Turns(*(sum(column) for column in zip(*(t.found for t in quiet), strict=True)))


def _line(few: _Turns, many: _Turns) -> tuple[float, float]:
    """Returns the seconds for each step, and those for each turn besides."""
    determinant = few.turns * many.steps - many.turns * few.steps
    each = (few.turns * many.seconds - many.turns * few.seconds) / determinant
    besides = (many.steps * few.seconds - few.steps * many.seconds) / determinant
    return max(0.0, each), max(0.0, besides)


def _fresh() -> float:
    """Returns the seconds that a byte of new memory takes more than one that was used before."""
    size = 2 * LARGEST_KEPT
    kept = np.empty(size, np.uint8)

    def fill(array: npt.NDArray[np.uint8] | None) -> float:
        begin = time.thread_time()
        if array is None:
            array = np.empty(size, np.uint8)
        array.fill(1)
        del array  # New memory is given back, too.
        return time.thread_time() - begin

    fill(kept)
    found = [fill(None) - fill(kept) for _ in range(_FILLED)]
    return max(0.0, statistics.median(found)) / size


def _piled(payload: str, gauge: Gauge, rounds: int) -> float:
    """Returns the seconds that a byte of many large answers to a `step` takes more than of few.

    It is a ratio of turns that follow one another, times what an environment took when the other
    costs were measured.
    """
    large = max(PAYLOADS, key=_size)
    some, many = (int(times * LARGEST_KEPT / _size(large)) for times in (_LARGE, _TOO_LARGE))
    with fake(large) as server, contextlib.ExitStack() as stack:
        server.answer_after(_LATENCY)
        pools = [stack.enter_context(opened(server.address, n, large)) for n in (some, many)]
        steps = [_parts(envs, envs.num_envs)["step"] for envs in pools]
        found = [[step() for step in steps] for _ in range(math.ceil(rounds * _PILED))]
    times = statistics.median(b / many / (a / some) for a, b in found)
    each = statistics.median(a / some for a, _ in found)
    if payload == large:
        each = gauge.reference / _GAUGE
    return max(0.0, times - 1) * each / _size(large)


def _serving(payload: str, rounds: int) -> float:
    """Returns the seconds of the server's processor for a step that computes nothing."""
    with served() as server, opened(server.address, _SERVED, payload) as envs:
        return _answering(server, envs, rounds) / _SERVED


def _answering(server: Process, envs: BatchedEnvironment, rounds: int) -> float:
    """Returns the seconds of the server's processor for a call of `step`."""
    valid = actions(envs.num_envs)
    envs.step(valid)
    steps = math.ceil(rounds / _ANSWERED)

    def answering() -> float:
        begin = server.usage().cpu
        for _ in range(steps):
            envs.step(valid)
        return (server.usage().cpu - begin) / steps

    watch = Watch(server)
    return _typical([watch.turn(answering) for _ in range(_ANSWERED)])


def _be_a_client(told: Pipe, address: str, payload: str) -> None:
    told.send(address)
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError):
        while True:
            count = told.recv()
            envs = stack.enter_context(opened(address, count, payload))
            for _ in range(_HELD_STEPS):
                envs.step(actions(count))
            told.send(usage())


def _memory(payload: str) -> tuple[float, float]:
    """Returns the bytes that an environment takes in the client's process and in the server's."""
    with (
        served() as server,
        process(_be_a_client, server.address, payload, kind=Process) as client,
    ):
        few: Usage = client.ask(_HELD)
        served_few = server.usage()
        more: Usage = client.ask(_MORE_HELD)
        served_more = server.usage()
    return (
        max(0, more.memory - few.memory) / _MORE_HELD,
        max(0, served_more.memory - served_few.memory) / _MORE_HELD,
    )
