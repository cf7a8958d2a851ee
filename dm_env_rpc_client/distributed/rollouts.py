"""The base class of rollouts, and rollouts that run in one process."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
import tree

from dm_env_rpc_client import arguments
from dm_env_rpc_client.distributed.environments import MakeEnv, RemoteEnvironments, environments_of
from dm_env_rpc_client.distributed.trajectories import Batch, EnvironmentSpecs, Stack, merge
from dm_env_rpc_client.errors import ConnectionClosedError, SpecError
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.tensors.displays.spec_tables import shapes_text

if TYPE_CHECKING:
    from typing_extensions import Self

Policy: TypeAlias = Callable[[dm_env.TimeStep, Any, Sequence[np.random.Generator]], Any]
"""A function that chooses the actions for N environments.

The arguments are the TimeSteps of the environments (fields of shape [N, ...]), the weights, and a
list with a random generator for each environment. The function returns the actions, with
leaves of shape [N, ...], or a PolicyStep.
"""


class PolicyStep(NamedTuple):
    """The actions chosen by a policy, and additional values to keep.

    Attributes:
      actions: the actions, with leaves of shape [N, ...].
      extras: values to keep, such as log-probabilities; a structure whose leaves are arrays of
        shape [N, ...].
    """

    actions: Any
    extras: Any


class Worker:
    """A worker that runs the policy in some of the environments.

    The random generator of an environment is seeded with `seed`, its index and `restarts`. If the
    policy computes rows independently, an environment's actions do not depend on the other
    environments of the worker.

    Args:
      make_env: a function that creates an environment from its index, or a `RemoteEnvironments`
        that opens all of them.
      policy: the function that chooses actions.
      env_ids: the indices of the environments.
      actor: the number of the worker, for errors.
      seed: the seed of the random generators; None for a different one each time.
      restarts: the number of earlier workers with these environments.
      specs: the required specs of the environments; None for the specs of the first environment.
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
        # None if the next call must begin sequences.
        self._latest: Any = None
        self._steps = 0

    def open(self) -> EnvironmentSpecs:
        """Create the environments if they do not exist yet.

        Returns:
          The specs of one environment.

        Raises:
          EnvironmentsFailedError: an environment could not be created.
          SpecError: the environments have different specs.
        """
        return self._envs.open()

    def collect(self, num_steps: int, version: int, weights: Any) -> Batch:
        """Take steps in all environments, creating them first if needed.

        The first call begins a sequence in each environment; later calls continue the sequences.

        Args:
          num_steps: the number of steps, T.
          version: the version of the weights.
          weights: the weights for the policy.

        Returns:
          The batch.

        Raises:
          EnvironmentsFailedError: some environments failed.
          SpecError: actions or TimeSteps do not conform.
          Otherwise, the exceptions raised by the policy. After any error, the next call begins a
            sequence in each environment.
        """
        specs = self.open()
        stack = Stack(specs, num_steps + 1, self._env_ids)
        if self._latest is None:
            self._latest = self._envs.begin()
        start = self._steps
        chosen = []
        # Stays None after an error, since continued sequences would lack the lost steps.
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
        """Close the environments without ever raising an exception."""
        self._envs.close()

    def _for_each(self, value: int) -> npt.NDArray[np.int64]:
        return np.full(len(self._env_ids), value, np.int64)

    def _choose(self, timestep: dm_env.TimeStep, weights: Any) -> PolicyStep:
        returned = self._policy(timestep, weights, self._random)
        step = returned if isinstance(returned, PolicyStep) else PolicyStep(returned, ())
        # A policy may reuse the returned arrays.
        copied = PolicyStep(*tree.map_structure(np.array, tuple(step)))
        count = len(self._env_ids)
        for what, structure in zip(copied._fields, copied, strict=True):
            for path, leaf in tree.flatten_with_path(structure):
                if leaf.shape[:1] != (count,):
                    name = f"{what} {'.'.join(map(str, path))!r}" if path else what
                    raise SpecError(
                        f"the policy returned {name} with shape {leaf.shape}; expected a first "
                        f"axis of length {count}, the number of environments in the actor"
                    )
        return copied


class Rollouts(abc.ABC):
    """Base class of `LocalRollouts` and `RayRollouts`, which run a policy in many environments.

    Actor i runs the environments i * envs_per_actor to (i + 1) * envs_per_actor - 1.

    Args:
      make_env: a function that returns the `dm_env.Environment` with a given index. Environments
        can be remote, as with `lambda index: make(address, {"seed": index})`, or local; all must
        have the same specs. It can also be a `RemoteEnvironments`, which steps the environments of
        an actor as one batch.
      policy: a function that is called with the TimeSteps of an actor's environments (fields of
        shape [envs_per_actor, ...]), the weights, and a list with a `numpy.random.Generator` for
        each environment. It returns the actions, with leaves of shape [envs_per_actor, ...], or a
        `PolicyStep`. It is also called for LAST TimeSteps, for which its actions are ignored. A
        policy with state is copied for each actor, and must reset its state where
        `timestep.first()` is true.
      num_actors: the number of actors.
      envs_per_actor: the number of environments in each actor.
      weights: the policy's initial weights.
      seed: the seed of the random generators, combined with the index of each environment and the
        number of its actor's replacements; None for a different one each time.

    Attributes:
      version: the version of the current weights: the number of calls of `update`.

    Raises:
      SpecError: an argument has the wrong type or is out of range, or environments have different
        specs.
      EnvironmentsFailedError: an environment could not be created. All other environments are
        closed.
    """

    def __init__(
        self,
        make_env: MakeEnv | RemoteEnvironments,
        policy: Policy,
        num_actors: int,
        envs_per_actor: int,
        weights: Any,
        seed: int | None,
    ):
        if not isinstance(make_env, RemoteEnvironments):
            expected = "a function from an index to an environment, or a RemoteEnvironments"
            arguments.function("make_env", make_env, expected=expected)
        self._make_env = make_env
        self._policy = arguments.function("policy", policy)
        self._actors = range(arguments.count("num_actors", num_actors))
        self._envs_per_actor = arguments.count("envs_per_actor", envs_per_actor)
        self._weights = weights
        none = "None for a different one each time"
        self._seed = arguments.count("seed", seed, least=0, none=none)
        self.version = 0
        self._specs: EnvironmentSpecs
        self._is_closed = False

    def __repr__(self) -> str:
        where = "closed" if self._is_closed else f"in {len(self._actors)} actors"
        return printable(
            f"<{type(self).__name__} of {self.num_envs}, {where}: "
            f"actions {shapes_text(self._specs.action)}; "
            f"observations {shapes_text(self._specs.observation)}>"
        )

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return len(self._actors) * self._envs_per_actor

    def update(self, weights: Any) -> None:
        """Set the policy's weights for all batches that begin after this call.

        Args:
          weights: the new weights, such as arrays, which the policy must not change.
        """
        self._weights = weights
        self.version += 1

    def collect(self, num_steps: int) -> Batch:
        """Take steps in all environments with the current weights, and wait for the results.

        The first batch begins with FIRST TimeSteps; later batches continue the sequences.

        Args:
          num_steps: the number of steps, T.

        Returns:
          One batch of all environments, in the order of their indices.

        Raises:
          SpecError: `num_steps` is not positive, or actions or TimeSteps do not conform.
          ConnectionClosedError: these rollouts are closed.
          EnvironmentsFailedError: some environments failed.
          Otherwise, the exceptions raised by the policy.
        """
        self._check(num_steps)
        return merge(self._collect_each(num_steps))

    def stream(self, num_steps: int) -> Iterator[Batch]:
        """Take steps endlessly.

        Args:
          num_steps: the number of steps in a batch, T.

        Returns:
          An iterator over batches, each from one actor.

        Raises:
          As `collect`.
        """
        self._check(num_steps)
        return self._stream(num_steps)

    def action_spec(self) -> Any:
        """Return the spec of one environment's actions."""
        return self._specs.action

    def observation_spec(self) -> Any:
        """Return the spec of one environment's observations."""
        return self._specs.observation

    def reward_spec(self) -> Any:
        """Return the spec of one environment's reward."""
        return self._specs.reward

    def discount_spec(self) -> Any:
        """Return the spec of one environment's discount."""
        return self._specs.discount

    def close(self) -> None:
        """Close all environments without ever raising an exception.

        A second call does nothing.
        """
        if not self._is_closed:
            self._is_closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abc.abstractmethod
    def _collect_each(self, num_steps: int) -> Sequence[Batch]:
        """Return one batch from each actor, in the order of the actors."""

    @abc.abstractmethod
    def _stream(self, num_steps: int) -> Iterator[Batch]: ...

    @abc.abstractmethod
    def _close(self) -> None: ...

    def _check(self, num_steps: int) -> None:
        arguments.count("num_steps", num_steps)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError("the rollouts are closed")

    def _env_ids(self, actor: int) -> range:
        return range(actor * self._envs_per_actor, (actor + 1) * self._envs_per_actor)


class LocalRollouts(Rollouts):
    """Rollouts that run in this process without Ray, for tests, debugging and first experiments.

    With a seed, and with environments that depend only on their indices, the trajectories are
    bit-for-bit equal to those of `RayRollouts` with the same arguments, as long as `RayRollouts`
    does not replace an actor.

    Args:
      make_env: creates the environments, as for `Rollouts`.
      policy: the policy, as for `Rollouts`.
      num_actors: the number of actors; each actor has a copy of the policy.
      envs_per_actor: the number of environments in each actor.
      weights: the policy's initial weights.
      seed: the seed of the random generators, as for `Rollouts`.

    Raises:
      As `Rollouts`.
    """

    def __init__(
        self,
        make_env: MakeEnv | RemoteEnvironments,
        policy: Policy,
        num_actors: int = 1,
        envs_per_actor: int = 1,
        *,
        weights: Any = None,
        seed: int | None = None,
    ):
        super().__init__(make_env, policy, num_actors, envs_per_actor, weights, seed)
        self._workers: list[Worker] = []
        specs = None
        try:
            for actor in self._actors:
                own = copy.deepcopy(policy)
                worker = Worker(make_env, own, self._env_ids(actor), actor, seed, 0, specs)
                self._workers.append(worker)
                specs = worker.open()
        except BaseException:
            self.close()
            raise
        assert specs is not None
        self._specs = specs

    def _collect_each(self, num_steps: int) -> Sequence[Batch]:
        return [self._collect(worker, num_steps) for worker in self._workers]

    def _stream(self, num_steps: int) -> Iterator[Batch]:
        while True:
            for worker in self._workers:
                self._check_open()
                yield merge([self._collect(worker, num_steps)])

    def _collect(self, worker: Worker, num_steps: int) -> Batch:
        return worker.collect(num_steps, self.version, self._weights)

    def _close(self) -> None:
        for worker in self._workers:
            worker.close()
