"""What one actor of rollouts does: a policy acts in some environments. It knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
import tree

from dm_env_rpc_client.distributed.environments import MakeEnv, RemoteEnvironments, environments_of
from dm_env_rpc_client.distributed.trajectories import Batch, EnvironmentSpecs, Stack
from dm_env_rpc_client.errors import SpecError

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
      make_env: makes an environment from its index, or opens all of them.
      policy: chooses actions.
      env_ids: the indices of the environments.
      actor: the number of the worker, by which errors name it.
      seed: of the random generators; None for different ones each time.
      restarts: how many workers have had these environments before.
      specs: the specs that the environments must have; None for those of the first.
    """

    def __init__(
        self,
        make_env: MakeEnv | RemoteEnvironments,
        policy: Policy,
        env_ids: Sequence[int],
        actor: int,
        seed: int | None,
        restarts: int = 0,
        specs: EnvironmentSpecs | None = None,
    ):
        self._envs = environments_of(make_env, env_ids, actor, specs)
        self._policy = policy
        self._env_ids = env_ids
        self._restarts = restarts
        self._random = [
            np.random.default_rng(None if seed is None else [seed, index, restarts])
            for index in env_ids
        ]
        # None if sequences are to begin.
        self._latest: Any = None
        self._steps = 0

    def open(self) -> EnvironmentSpecs:
        """Makes the environments, unless that was done.

        Returns:
          Their specs.

        Raises:
          EnvironmentsFailedError: one could not be made.
          SpecError: they have different specs.
        """
        return self._envs.open()

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
          EnvironmentsFailedError: some environments failed.
          SpecError: actions or TimeSteps do not conform.
          Otherwise what the policy raises. After any error the next call begins a sequence in each
            environment.
        """
        specs = self.open()
        stack = Stack(specs, num_steps + 1, self._env_ids)
        if self._latest is None:
            self._latest = self._envs.begin()
        start = self._steps
        chosen = []
        # After an error the next call begins sequences, since steps of these would be missing.
        latest, self._latest = self._latest, None
        for time in range(num_steps + 1):
            self._envs.put(stack, time, latest)
            if time < num_steps:
                chosen.append(self._choose(stack.at(time), weights))
                latest = self._envs.step(chosen[-1].actions, latest)
                self._steps += 1
        actions, extras = tree.map_structure(lambda *leaves: np.stack(leaves), *map(tuple, chosen))
        batch = Batch(
            stack.whole(),
            actions,
            extras,
            np.array(self._env_ids, np.int64),
            self._for_each(self._restarts),
            self._for_each(start),
            version,
        )
        self._latest = latest
        return batch

    def close(self) -> None:
        """Closes the environments; raises nothing."""
        self._envs.close()

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
