"""Episodes and policies for `dm-env-rpc run` and `bench`, and a timer for a step's phases.

One call sends a step, and a separate call waits for its answer. The function that decodes the
answer is the first to receive it, so it also records the arrival time. Together, the phases make
up the whole step:

    encode   the action is checked and packed
    send     the request is written, until the transport has accepted it
    wait     the request travels, the server works, and the answer travels
    decode   the answer is unpacked, until the TimeStep is complete

The client cannot measure the server's share of the wait. Servers answer an unknown request without
doing any work, so the wait for such an answer is only network time. The server's share is
estimated as the wait for a step minus the wait for an unknown request.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt
import tree
from google.protobuf import any_pb2

from dm_env_rpc_client.cli.stepping.watch import CUT_OFF, Watch
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import DmEnvRpcError, EnvironmentsFailedError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.envelopes import Buffer, encode_request
from dm_env_rpc_client.tensors.specs import sample

Policy = Callable[[dm_env.TimeStep], Any]


def make_policy(name: str, action_spec: Any, seed: int | None) -> Policy:
    """Return the policy with a given name.

    Args:
      name: "random" samples every action from its spec; "constant" always returns the value that
        the spec generates; MODULE:FUNCTION is a function that receives the TimeStep and the action
        spec and returns the action.
      action_spec: the action spec of the environment.
      seed: the seed of the random policy.

    Raises:
      SpecError: the policy does not exist.
    """
    function = Options(policy=name).load_policy()
    if function is not None:
        return lambda timestep: function(timestep, action_spec)
    if name == "random":
        random = np.random.default_rng(seed)
        return lambda _: tree.map_structure(lambda spec: sample(spec, random), action_spec)
    constant = tree.map_structure(lambda spec: spec.generate_value(), action_spec)
    return lambda _: constant


_UNKNOWN = "type.googleapis.com/dm_env_rpc_client.NothingThatAnybodyKnows"


class Moments(NamedTuple):
    """The durations of one step's phases, in seconds, and its message sizes, in bytes."""

    encode: float
    send: float
    wait: float
    decode: float
    request_bytes: int
    answer_bytes: int

    @property
    def total(self) -> float:
        """The duration of the whole step, in seconds."""
        return self.encode + self.send + self.wait + self.decode


class _Arrival:
    """A decoder that records the arrival time and size of an answer."""

    def __init__(self, decode: Callable[[Buffer], Any]):
        self._decode = decode
        self.moment = 0.0
        self.size = 0

    def __call__(self, message: Buffer) -> Any:
        self.moment = time.perf_counter()
        self.size = len(message)
        return self._decode(message)


class Stopwatch:
    """A timer that measures the steps of an environment.

    Args:
      env: the environment; nothing else may use its connection.
      actions: the actions, which are repeated in a loop regardless of the ends of episodes.
    """

    def __init__(self, env: DmEnvAdaptor, actions: Sequence[Any]):
        self._env = env
        self._actions = itertools.cycle(actions)

    def step(self) -> Moments:
        """Take a step and wait for its answer.

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
        """Send a request that no server knows, and return the seconds until its answer arrives.

        Raises:
          ConnectionLostError, ProtocolError, DeadlineExceededError: the server does not answer as
            the protocol requires.
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
        """Take steps for some time, keeping several pending, and return the steps per second.

        Args:
          depth: the maximum number of pending steps; see `DmEnvAdaptor.rollout`.
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
    """Return the `percents` percentiles of `seconds`, in microseconds, named like "p99"."""
    found = np.percentile(seconds, percents) * 1e6
    return {f"p{percent:g}": float(us) for percent, us in zip(percents, found, strict=True)}


class Episodes:
    """An iterable that runs episodes, in all rows of a batched world at once.

    All rows run the same number of episodes, plus or minus one: otherwise short episodes, which end
    first, would be overrepresented. A world that is not a batch has one row.

    Args:
      env: the world.
      num_envs: the number of rows of the world; None if the world is not a batch.
      act: the policy, which returns the actions of all rows.
      count: the total number of episodes.
      max_steps: the number of steps after which an episode is cut off.
      watch: reports what a step waits for.
      step: takes and times a step.
    """

    def __init__(
        self,
        env: DmEnvAdaptor,
        num_envs: int | None,
        act: Policy,
        count: int,
        max_steps: int,
        watch: Watch,
        step: Callable[[Any], dm_env.TimeStep],
    ):
        self._env = env
        self._act = act
        self._max_steps = max_steps
        self._watch = watch
        self._step = step
        self._is_batch = num_envs is not None
        rows = np.arange(num_envs or 1)
        self._wanted = count // len(rows) + (rows < count % len(rows))
        self._returns = np.zeros(len(rows))
        self._lengths = np.zeros(len(rows), int)
        self._takes_mask = self._is_batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each episode as soon as it has ended."""
        timestep = self._reset(None)
        while self._wanted.any():
            timestep = self._step(self._act(timestep))
            self._check(timestep)
            kinds = np.atleast_1d(
                timestep.observation[batches.STEP_TYPE] if self._is_batch else timestep.step_type
            )
            stepped = kinds != dm_env.StepType.FIRST
            rewards = np.asarray(0.0 if timestep.reward is None else timestep.reward)
            sums = rewards.reshape(len(kinds), -1).sum(axis=1) if rewards.ndim else rewards
            self._returns += np.where(stepped, sums, 0.0)
            self._lengths += stepped
            is_last = kinds == dm_env.StepType.LAST
            is_cut = ~is_last & (self._lengths >= self._max_steps)
            for row in np.flatnonzero((is_last | is_cut) & (self._wanted > 0)):
                self._wanted[row] -= 1
                yield self._episode(int(row), timestep, bool(is_cut[row]))
            ended = is_last | is_cut
            self._returns[ended] = self._lengths[ended] = 0
            if ended.any() and self._wanted.any():
                timestep = self._begin(ended, is_cut, timestep)

    def _episode(self, row: int, timestep: dm_env.TimeStep, is_cut: bool) -> dict[str, Any]:
        discount = timestep.discount
        if self._is_batch and discount is not None:
            discount = discount[row]
        ended = "interrupted" if discount is None or np.any(discount) else "terminated"
        return {
            **({"row": row} if self._is_batch else {}),
            "return": float(self._returns[row]),
            "length": int(self._lengths[row]),
            "ended": CUT_OFF if is_cut else ended,
        }

    def _begin(
        self, ended: npt.NDArray[np.bool_], is_cut: npt.NDArray[np.bool_], last: dm_env.TimeStep
    ) -> dm_env.TimeStep:
        """Begin new sequences in rows whose sequences ended, unless the next step will do so."""
        if self._takes_mask:
            try:
                return self._reset(ended)
            except DmEnvRpcError:
                # The vector environment begins them itself.
                self._takes_mask = False
        if self._is_batch and not is_cut.any():
            return last
        self._returns[:] = self._lengths[:] = 0
        return self._reset(None)

    def _reset(self, mask: npt.NDArray[np.bool_] | None) -> dm_env.TimeStep:
        with self._watch.step():
            timestep = self._env.reset(None if mask is None else {batches.RESET_MASK: mask})
        self._check(timestep)
        return timestep

    def _check(self, timestep: dm_env.TimeStep) -> None:
        """Raise EnvironmentsFailedError if a row reports an error."""
        if not self._is_batch:
            return
        errors = timestep.observation.get(batches.ROW_ERRORS, "")
        found = batches.row_errors(errors, len(self._lengths))
        if found:
            failures: dict[int, Exception] = {row: RuntimeError(e) for row, e in found.items()}
            address = self._env.connection.address
            raise EnvironmentsFailedError(failures, dict.fromkeys(failures, address))
