"""What many environments should reach, calculated from what a step was measured to cost.

Pure: no I/O, nothing measured here. Times are in seconds of a processor or of the clock, sizes in
bytes, rates in steps per second. `docs/explanations/scale.md` states the formulas.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "CLIENT",
    "CORES",
    "FIRST_BATCH",
    "LARGEST_KEPT",
    "NETWORK",
    "SERVERS",
    "Costs",
    "Machine",
    "Reach",
    "batches",
    "busy_from",
    "cluster",
    "machine",
    "round_seconds",
    "stepped",
    "turn",
    "wire_bytes",
]

FIRST_BATCH = 2
"""How many Steps are sent first while a `ClientConnection` is corked; then four times as many."""

LARGEST_KEPT = 32 << 20
"""Bytes up to which the allocator of glibc uses memory again (DEFAULT_MMAP_THRESHOLD_MAX)."""

CLIENT = "client process"
SERVERS = "server processes"
NETWORK = "network card"
CORES = "cores"

_GROWTH = 4
_FRAME_BYTES = 1538
_SEGMENT_BYTES = 1448
"""Of a full Ethernet frame, with the gap between two, what TCP carries (RFC 894, 1323)."""

_UNTIL_STEADY, _STEADY = 10, 50
"""Of turns of all environments: how many go by first, and how many are looked at."""

_MOST = 1 << 14
"""Environments up to which `busy_from` looks."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a step costs, each measured by itself with few environments.

    Attributes:
      call: seconds of the client's processor for each call of `step`, for any number of
        environments.
      check: for each environment, to check and encode its action; nothing is sent before all are.
      send: for each environment, to write its Step.
      read: for each environment, to receive and decode its answer, and to put it into the batch.
      turn: for each `recv` and the `send` after it, for any number of environments.
      swap: for each environment that `recv` returned and `send` stepped again.
      fresh: for each byte of an array that is too large to be in memory that was used before.
      piled: for each byte of the answers to a `step`, if they are too large together; with `fresh`.
      serve: seconds of the server's processor for each step, without what the environment computes.
      fake: the same of a fake server, which the calculation is held against.
      request_bytes: of a Step as HTTP/2 sends it.
      answer_bytes: of its answer.
      client_bytes: memory of the client's process for each environment.
      server_bytes: memory of the server's process for each environment.
    """

    call: float
    check: float
    send: float
    read: float
    turn: float
    swap: float
    fresh: float
    piled: float
    serve: float
    fake: float
    request_bytes: float
    answer_bytes: float
    client_bytes: float
    server_bytes: float

    @property
    def client(self) -> float:
        """Seconds of the client's processor for a step of one of many environments."""
        return self.check + self.send + self.read

    def slowed(self, times: float) -> Costs:
        """Returns the costs when the client's processor takes so many times as long."""
        names = ("call", "check", "send", "read", "turn", "swap", "fresh", "piled")
        return dataclasses.replace(self, **{name: getattr(self, name) * times for name in names})

    def fresh_memory(self, count: float) -> float:
        """Returns the seconds that an environment adds if a batch of so many is in new memory."""
        return self.answer_bytes * self.fresh if self._is_large(count) else 0.0

    def piled_up(self, count: float) -> float:
        """Returns the same for a `step` of so many, whose answers come faster than they are read.

        They are in new memory, too, and caches hold none of it.
        """
        return self.answer_bytes * self.piled if self._is_large(count) else 0.0

    def _is_large(self, count: float) -> bool:
        return count * self.answer_bytes > LARGEST_KEPT


def wire_bytes(content: float) -> float:
    """Returns the bytes on Ethernet for so many bytes of a TCP stream."""
    return content * _FRAME_BYTES / _SEGMENT_BYTES


def batches(count: int) -> Iterator[int]:
    """Yields how many Steps are sent together, of so many on one connection."""
    size = FIRST_BATCH
    while count > 0:
        yield min(size, count)
        count -= size
        size *= _GROWTH


def round_seconds(
    costs: Costs,
    count: int,
    latency: float = 0.0,
    *,
    servers: int = 1,
    serve: float = 0.0,
    bandwidth: float = math.inf,
) -> float:
    """Returns how long a `step` of all environments takes, which waits for all answers.

    It follows the Steps one by one: the client checks all actions, sends the Steps in batches, and
    reads the answers in order; each server process answers one after another; the client's network
    card receives one after another.

    Args:
      costs: of a step.
      count: the number of environments, which are spread over the servers in turn.
      latency: seconds of each answer in which its server process is free for others.
      servers: the number of server processes, each on a core of its own.
      serve: seconds of a server's processor for each step.
      bandwidth: bytes per second of the client's network card.
    """
    now = costs.call + count * costs.check
    sent = [0.0] * count
    waiting: list[list[int]] = [[] for _ in range(servers)]
    held_back = [FIRST_BATCH] * servers
    for index in range(count):
        now += costs.send
        server = index % servers
        waiting[server].append(index)
        if len(waiting[server]) == held_back[server]:
            for each in waiting[server]:
                sent[each] = now
            waiting[server].clear()
            held_back[server] *= _GROWTH
    for rest in waiting:
        for each in rest:
            sent[each] = now
    answered = [0.0] * servers
    received = 0.0
    read = costs.read + costs.piled_up(count)
    for index in range(count):
        server = index % servers
        answered[server] = max(answered[server], sent[index]) + serve
        received = max(received, answered[server] + latency)
        received += wire_bytes(costs.answer_bytes) / bandwidth
        now = max(now, received) + read
    return now


def stepped(costs: Costs, count: int, latency: float, serve: float = 0.0) -> float:
    """Returns the steps per second of `step`, which waits for all; arguments as `round_seconds`."""
    return count / round_seconds(costs, count, latency, serve=serve)


def turn(costs: Costs, count: int, latency: float, serve: float = 0.0) -> float:
    """Returns the steps per second of `recv` and `send` in turns, which wait for any.

    It follows the turns one by one, from a `send` to all: the client takes the answers that have
    arrived, or waits for the first, and steps those environments again, in batches. Those that are
    answered together stay together, so that the client may have to wait for many of them although
    others could be answered meanwhile.

    Args:
      costs: of a step.
      count: the number of environments.
      latency: seconds until an answer arrives.
      serve: seconds of the server's processor for each step.
    """
    read = max(0.0, costs.swap - costs.check - costs.send)
    now = answered = 0.0
    # When answers arrive, and how many.
    arriving: collections.deque[tuple[float, int]] = collections.deque()

    def send(steps: int) -> None:
        nonlocal now, answered
        now += steps * costs.check
        for batch in batches(steps):
            now += batch * costs.send
            answered = max(answered, now) + batch * serve
            arriving.append((answered + latency, batch))

    send(count)
    lasts = latency + count * (costs.swap + serve)
    begin, taken = 0.0, 0
    while now < (_UNTIL_STEADY + _STEADY) * lasts:
        now = max(now, arriving[0][0])
        steps = 0
        while arriving and arriving[0][0] <= now:
            steps += arriving.popleft()[1]
        now += costs.turn + steps * (read + costs.fresh_memory(steps))
        send(steps)
        if now < _UNTIL_STEADY * lasts:
            begin = now
        else:
            taken += steps
    return taken / (now - begin)


def busy_from(rate: Callable[[int], float], limit: float, share: float = 0.9) -> int:
    """Returns the least number of environments that reach a share of a limit.

    Args:
      rate: steps per second of a number of environments; more environments are not slower.
      limit: steps per second.
      share: of the limit.
    """
    high = 1
    while rate(high) < share * limit and high < _MOST:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if rate(middle) < share * limit:
            low = middle
        else:
            high = middle
    return high


@dataclasses.dataclass(frozen=True)
class Reach:
    """What something reaches.

    Attributes:
      rate: steps per second.
      first: what saturates first.
      environments: how many it takes: twice as many as are stepped at any time, so that nobody
        waits for them, and so many for each client that `call` costs a tenth of the rate at most.
    """

    rate: float
    first: str
    environments: int

    @classmethod
    def of(cls, costs: Costs, work: float, limits: Mapping[str, float], clients: int) -> Reach:
        """Finds the lowest of some limits, in steps per second, by what they are of."""
        first = min(limits, key=lambda each: limits[each])
        stepped = limits[first] * (costs.client + costs.serve + work)
        room = max(1.1 * clients / limits[first] - costs.client, 0.1 * costs.client)
        least = clients * max(1, math.ceil(costs.call / room - 1e-9))
        return cls(limits[first], first, max(round(2 * stepped), least))


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine reaches with clients and servers on it.

    Attributes:
      alone: with one client process.
      full: with as many client processes as it takes to keep all cores busy.
      clients: the number of these client processes.
      servers: the number of server processes beside them.
    """

    alone: Reach
    full: Reach
    clients: int
    servers: int


def machine(costs: Costs, work: float, cores: int) -> Machine:
    """Calculates a machine on which both clients and servers run.

    Args:
      costs: of a step.
      work: seconds of a processor that an environment computes in each step.
      cores: of the machine.
    """
    full = {CORES: cores / (costs.client + costs.serve + work)}
    clients = min(max(1, round(full[CORES] * costs.client)), cores - 1)
    return Machine(
        Reach.of(costs, work, {CLIENT: 1 / costs.client} | full, 1),
        Reach.of(costs, work, full, clients),
        clients,
        cores - clients,
    )


def cluster(
    costs: Costs,
    work: float,
    machines: int,
    cores: int,
    bandwidth: float,
    clients: int | None = None,
) -> Reach:
    """Calculates a cluster whose trainer is on another machine, with a network card of its own.

    Args:
      costs: of a step.
      work: seconds of a processor that an environment computes in each step.
      machines: that run environments.
      cores: of each machine.
      bandwidth: bytes per second of the trainer's network card.
      clients: the number of client processes beside the trainer, which step environments over the
        network; None for clients beside the environments, which send the trainer what they observed
        (actors of Ray).
    """
    limits = {NETWORK: bandwidth / wire_bytes(costs.answer_bytes)}
    if clients is None:
        clients = machines * machine(costs, work, cores).clients
        limits[CORES] = machines * cores / (costs.client + costs.serve + work)
    else:
        limits[CLIENT] = clients / costs.client
        limits[SERVERS] = machines * cores / (costs.serve + work)
    return Reach.of(costs, work, limits, clients)
