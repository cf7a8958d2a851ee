"""Measures how long the phases of a step take.

A step is sent and finished by separate calls, and the arrival of its answer is noticed by the
function that decodes it, because that is the first to get the answer. So the phases cover the
whole step:

    encode   the action is checked and packed
    send     the request is written, until the transport has accepted it
    wait     network, work of the server, network
    decode   the answer is unpacked, until the TimeStep is complete

The client cannot measure the server's share of the wait. A request that every server answers
without work takes as long as the network alone; the difference is an estimate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import any_pb2

from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import DmEnvRpcError
from dm_env_rpc_client.protocol.envelopes import Buffer, encode_request

_UNKNOWN = "type.googleapis.com/dm_env_rpc_client.NothingThatAnybodyKnows"


class Moments(NamedTuple):
    """The phases of one step in seconds, and its messages in bytes."""

    encode: float
    send: float
    wait: float
    decode: float
    request_bytes: int
    answer_bytes: int

    @property
    def total(self) -> float:
        """The whole step."""
        return self.encode + self.send + self.wait + self.decode


class _Arrival:
    """Decodes an answer and records when it came and how large it was."""

    def __init__(self, decode: Callable[[Buffer], Any]):
        self._decode = decode
        self.moment = 0.0
        self.size = 0

    def __call__(self, message: Buffer) -> Any:
        self.moment = time.perf_counter()
        self.size = len(message)
        return self._decode(message)


class Stopwatch:
    """Steps an environment and takes the time.

    Args:
      env: the environment, whose connection nothing else uses.
      actions: taken in a loop, across the ends of episodes.
    """

    def __init__(self, env: DmEnvAdaptor, actions: Sequence[Any]):
        self._env = env
        self._actions = itertools.cycle(actions)

    def step(self) -> Moments:
        """Takes a step and waits for its answer.

        Raises:
          As `DmEnvAdaptor.step`.
        """
        env, action = self._env, next(self._actions)
        begin = time.perf_counter()
        prepared = env._prepare_step(action)
        encoded = time.perf_counter()
        arrival = _Arrival(prepared.decode)
        watched = prepared._replace(decode=arrival)
        written_from = time.perf_counter()
        pending = env._start_step(watched)
        sent = time.perf_counter()
        env._finish_step(pending)
        end = time.perf_counter()
        return Moments(
            encoded - begin,
            sent - written_from,
            arrival.moment - sent,
            end - arrival.moment,
            len(prepared.message),
            arrival.size,
        )

    def round_trip(self) -> float:
        """Sends a request that the server does not know; returns the seconds until the answer.

        Raises:
          ConnectionLostError, ProtocolError, DeadlineExceededError: the server does not answer
            it as the protocol says.
        """
        request = encode_request(any_pb2.Any(type_url=_UNKNOWN))
        arrival = _Arrival(request.decode)
        connection = self._env.connection
        pending = connection.start(request._replace(decode=arrival))
        sent = time.perf_counter()
        try:
            connection.wait(pending)
        except DmEnvRpcError:
            pass  # The expected answer.
        return arrival.moment - sent

    def ahead(self, depth: int, seconds: float) -> float:
        """Takes steps for some time, with several of them pending; returns steps/s.

        Args:
          depth: the most steps that are pending at once; see `DmEnvAdaptor.rollout`.
          seconds: the duration; at least `depth` steps are taken.
        """
        begin = time.perf_counter()
        actions = self._until(begin + seconds, depth)
        count = sum(1 for _ in self._env.rollout(actions, depth))
        return count / (time.perf_counter() - begin)

    def _until(self, end: float, at_least: int) -> Iterator[Any]:
        for number, action in enumerate(self._actions):
            if number >= at_least and time.perf_counter() >= end:
                return
            yield action


def percentiles_us(seconds: Sequence[float], percents: Sequence[float]) -> dict[str, float]:
    """Returns percentiles of times by name, such as "p99", in microseconds."""
    found = np.percentile(seconds, percents) * 1e6
    return {f"p{percent:g}": float(us) for percent, us in zip(percents, found, strict=True)}
