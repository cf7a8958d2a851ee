"""What one actor of rollouts does: a policy acts in some environments. It knows nothing of Ray."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
import tree

from dm_env_rpc_client.distributed.trajectories import Batch, EnvironmentSpecs, Stack
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.many.pool import NO_ACTION
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError

_log = logging.getLogger(__name__)

MakeEnv: TypeAlias = Callable[[int], dm_env.Environment]
"""Makes the environment with an index."""

Policy: TypeAlias = Callable[[dm_env.TimeStep, Any, Sequence[np.random.Generator]], Any]
"""Chooses the actions of N environments: called with their TimeSteps, each field [N, ...]; with the
weights; and with a random generator for each. Returns the actions, each leaf [N, ...], or a
PolicyStep."""


class PolicyStep(NamedTuple):
    """What a policy returns if it has more to tell than actions.

    Attributes:
      actions: the actions, each leaf [N, ...].
      extras: what is to be kept beside them, such as log-probabilities; a structure whose leaves
        are arrays [N, ...].
    """

    actions: Any
    extras: Any


class Worker:
    """Some environments, and a policy that acts in them.

    The random generator of an environment is made of the seed, its index and `restarts`, so
    that its actions do not depend on which other environments the worker has, if the policy
    computes each row on its own.

    Args:
      make_env: makes an environment from its index.
      policy: chooses actions.
      env_ids: the indices of the environments.
      actor: the number of the worker, by which errors name it.
      seed: of the random generators; None for different ones each time.
      restarts: how many workers have had these environments before.
      specs: the specs that the environments must have; None for those of the first.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        policy: Policy,
        env_ids: Sequence[int],
        actor: int,
        seed: int | None,
        restarts: int = 0,
        specs: EnvironmentSpecs | None = None,
    ):
        self._make_env = make_env
        self._policy = policy
        self._env_ids = env_ids
        self._actor = actor
        self._restarts = restarts
        self._specs = specs
        self._random = [
            np.random.default_rng(None if seed is None else [seed, index, restarts])
            for index in env_ids
        ]
        self._envs: list[dm_env.Environment] = []
        self._latest: list[dm_env.TimeStep] = []
        self._steps = 0

    def open(self) -> EnvironmentSpecs:
        """Makes the environments, unless that was done.

        Returns:
          Their specs.

        Raises:
          EnvironmentsFailedError: one could not be made.
          SpecError: they have different specs.
        """
        try:
            for index in self._env_ids[len(self._envs) :]:
                try:
                    self._envs.append(self._make_env(index))
                    specs = EnvironmentSpecs.of(self._envs[-1])
                except Exception as error:
                    raise self._failed({index: error}) from error
                self._specs = self._specs or specs
                self._specs.check_same(specs, f"environment {index}")
        except BaseException:
            self.close()
            raise
        assert self._specs is not None
        return self._specs

    def collect(self, num_steps: int, version: int, weights: Any) -> Batch:
        """Takes steps in all environments, and makes them first if need be.

        The first call begins a sequence in each environment. Later ones go on where the call
        before has ended.

        Args:
          num_steps: the number of steps, T.
          version: which weights these are.
          weights: for the policy.

        Returns:
          The batch.

        Raises:
          EnvironmentsFailedError: some environments failed. The next call begins a sequence in
            each.
          SpecError: actions or TimeSteps do not conform.
          Otherwise what the policy raises.
        """
        specs = self.open()
        stack = Stack(specs, num_steps + 1, self._env_ids)
        if not self._latest:
            self._latest = self._each(lambda place: self._envs[place].reset())
        start = self._steps
        chosen = []
        for time in range(num_steps + 1):
            for place, timestep in enumerate(self._latest):
                stack.put(time, place, timestep)
            if time < num_steps:
                chosen.append(self._choose(stack.at(time), weights))
                self._latest = self._step(chosen[-1].actions)
                self._steps += 1
        actions, extras = tree.map_structure(lambda *leaves: np.stack(leaves), *map(tuple, chosen))
        return Batch(
            stack.whole(),
            actions,
            extras,
            np.array(self._env_ids, np.int64),
            self._for_each(self._restarts),
            self._for_each(start),
            version,
        )

    def close(self) -> None:
        """Closes the environments; raises nothing."""
        while self._envs:
            try:
                self._envs.pop().close()
            except Exception:
                _log.warning("could not close an environment", exc_info=True)

    def _for_each(self, value: int) -> npt.NDArray[np.int64]:
        return np.full(len(self._env_ids), value, np.int64)

    def _choose(self, timestep: dm_env.TimeStep, weights: Any) -> PolicyStep:
        returned = self._policy(timestep, weights, self._random)
        step = returned if isinstance(returned, PolicyStep) else PolicyStep(returned, ())
        # Copies: a policy may return the same arrays each time.
        copied = PolicyStep(*tree.map_structure(np.array, tuple(step)))
        count = len(self._env_ids)
        for what, structure in zip(copied._fields, copied, strict=True):
            for path, leaf in tree.flatten_with_path(structure):
                if leaf.shape[:1] != (count,):
                    name = f"{what} {'.'.join(map(str, path))!r}" if path else what
                    raise SpecError(
                        f"the policy returned {name} with shape {leaf.shape}; expected a first "
                        f"axis of {count}, one for each environment of the actor"
                    )
        return copied

    def _step(self, actions: Any) -> list[dm_env.TimeStep]:
        """Steps all environments; after the end of a sequence the next one begins."""
        rows: list[Any] = [
            tree.map_structure(operator.itemgetter(place), actions)
            for place in range(len(self._envs))
        ]

        def start(place: int) -> Any:
            env = self._envs[place]
            if type(env).step is not DmEnvAdaptor.step:
                return None
            action = NO_ACTION if self._latest[place].last() else rows[place]
            return env._start_step(env._prepare_step(action))

        def finish(place: int) -> dm_env.TimeStep:
            env = self._envs[place]
            if started[place] is not None:
                return env._finish_step(started[place])
            return env.reset() if self._latest[place].last() else env.step(rows[place])

        # All Steps to remote environments are written before any answer is read.
        started = self._each(start)
        return self._each(finish)

    def _each(self, act: Callable[[int], Any]) -> list[Any]:
        """Does something with each environment, also if it fails with others."""
        results = []
        failures: dict[int, Exception] = {}
        for place, index in enumerate(self._env_ids):
            try:
                results.append(act(place))
            except Exception as error:
                failures[index] = error
        if not failures:
            return results
        self._latest = []  # The next call begins sequences.
        for index, failure in failures.items():
            if isinstance(failure, SpecError):
                raise SpecError(f"environment {index}: {failure}") from failure
        raise self._failed(failures)

    def _failed(self, failures: Mapping[int, Exception]) -> EnvironmentsFailedError:
        return EnvironmentsFailedError(failures, dict.fromkeys(failures, f"actor {self._actor}"))
