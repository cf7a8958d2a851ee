"""The environments of one actor, created individually or in batches on servers."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import dm_env
import numpy as np
import tree

from dm_env_rpc_client import arguments
from dm_env_rpc_client.distributed.trajectories import EnvironmentSpecs, Stack
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.batched import BatchedEnvironment
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.many.open_rows import checked_batches
from dm_env_rpc_client.environment.many.pool import NO_ACTION
from dm_env_rpc_client.environment.many.pool_servers import Addresses, listed
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError
from dm_env_rpc_client.system.secrets import hidden

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import BatchKeywords

_log = logging.getLogger(__name__)

MakeEnv: TypeAlias = Callable[[int], dm_env.Environment]
"""A function that creates the environment with a given index."""

IndexSettings: TypeAlias = "Mapping[str, Any] | Callable[[int], Mapping[str, Any]]"
"""The settings for all environments, or a function from an environment's index to its settings."""


class RemoteEnvironments:
    """Remote environments for rollouts; each actor steps all its environments together.

    If a server supports batches, the environments of an actor on this server form a batch, with
    one message per step. Otherwise each environment has its own stream, as in
    `BatchedEnvironment`.

    Args:
      addresses: one address, as for `make`, or several, which are assigned to the environments in
        turn, in the order of their indices.
      create_world_settings: settings for creating the world of each environment: one mapping for
        all environments, or a function of the index.
      join_world_settings: settings for joining the worlds, in the same form.
      num_batches: the number of batches of each actor at each server, as for `BatchedEnvironment`.
      **make_kwargs: arguments of `make`, such as `request_timeout` or `restart`.

    Raises:
      SpecError: an argument has the wrong type or is out of range.
    """

    def __init__(
        self,
        addresses: Addresses,
        create_world_settings: IndexSettings = NO_SETTINGS,
        join_world_settings: IndexSettings = NO_SETTINGS,
        *,
        num_batches: int | None = None,
        **make_kwargs: Unpack[BatchKeywords],
    ):
        MakeOptions.of(make_kwargs)
        for name, settings in (
            ("create_world_settings", create_world_settings),
            ("join_world_settings", join_world_settings),
        ):
            if not callable(settings):
                expected = (
                    "a mapping of names to values, or a function that returns one for an index"
                )
                arguments.mapping(name, settings, expected=expected)
        self._addresses = listed(addresses)
        self._settings = create_world_settings, join_world_settings
        self._num_batches = checked_batches(num_batches)
        self._make_kwargs = hidden(make_kwargs)

    def open(self, env_ids: Sequence[int]) -> BatchedEnvironment:
        """Open the environments with the given, consecutive indices.

        Raises:
          As `BatchedEnvironment`.
        """
        count = len(self._addresses)
        addresses = [self._addresses[index % count] for index in env_ids[:count]]
        creating, joining = (
            [own(index) if callable(own) else own for index in env_ids] for own in self._settings
        )
        return BatchedEnvironment(
            addresses[0] if len(addresses) == 1 else addresses,
            len(env_ids),
            creating,
            joining,
            num_batches=self._num_batches,
            **self._make_kwargs,
        )


class ActorEnvironments(Protocol):
    """The interface to the N environments of an actor.

    `put` accepts the results of `begin` and `step`. An EnvironmentsFailedError identifies
    environments by their indices.
    """

    def open(self) -> EnvironmentSpecs:
        """Open the environments if they are not open, and return the specs of one of them."""

    def begin(self) -> Any:
        """Begin a sequence in each environment and return the FIRST TimeSteps."""

    def step(self, actions: Any, latest: Any) -> Any:
        """Step each environment, or begin its next sequence after a LAST TimeStep.

        Args:
          actions: the actions, with leaves of shape [N, ...].
          latest: the last TimeSteps.

        Raises:
          EnvironmentsFailedError: some have failed.
          SpecError: an action does not conform.
        """

    def put(self, stack: Stack, time: int, latest: Any) -> None:
        """Copy the latest TimeSteps into a stack, at a given time index."""

    def close(self) -> None:
        """Close the environments without ever raising an exception."""


Made = TypeVar("Made", MakeEnv, RemoteEnvironments)


def environments_of(
    make_env: MakeEnv | RemoteEnvironments,
    env_ids: Sequence[int],
    actor: int,
    specs: EnvironmentSpecs | None,
) -> ActorEnvironments:
    """Return the environments of an actor, without opening them.

    Args:
      make_env: creates the environments.
      env_ids: the indices of the environments.
      actor: the number of the actor, for errors.
      specs: the required specs; None for the specs of the first environment.
    """
    if isinstance(make_env, RemoteEnvironments):
        return _Together(make_env, env_ids, actor, specs)
    return _Separate(make_env, env_ids, actor, specs)


class _Environments(ActorEnvironments, Generic[Made]):
    """Base class that stores the arguments of `environments_of`."""

    def __init__(
        self, make_env: Made, env_ids: Sequence[int], actor: int, specs: EnvironmentSpecs | None
    ):
        self._make_env: Made = make_env
        self._env_ids = env_ids
        self._where = f"actor {actor}"
        self._specs = specs


class _Together(_Environments[RemoteEnvironments]):
    """Remote environments that are stepped together as one batch."""

    _envs: BatchedEnvironment | None = None

    def open(self) -> EnvironmentSpecs:
        if self._envs is None:
            try:
                envs = self._make_env.open(self._env_ids)
            except EnvironmentsFailedError as error:
                # A batch opens as a whole, so all its environments fail together.
                raise _failed(dict.fromkeys(self._env_ids, error), self._where) from error
            try:
                specs = EnvironmentSpecs(*envs._single_specs())
                self._specs = self._specs or specs
                self._specs.check_same(specs, f"environment {self._env_ids[0]}")
            except BaseException:
                envs.close()
                raise
            self._envs = envs
        assert self._specs is not None
        return self._specs

    def begin(self) -> dm_env.TimeStep:
        return self._named(lambda envs: envs.reset())

    def step(self, actions: Any, latest: dm_env.TimeStep) -> dm_env.TimeStep:
        ended = np.flatnonzero(latest.last()).tolist()
        return self._named(lambda envs: envs._step(actions, ended))

    def put(self, stack: Stack, time: int, latest: dm_env.TimeStep) -> None:
        stack.put_all(time, latest)

    def close(self) -> None:
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()

    def _named(self, act: Callable[[BatchedEnvironment], dm_env.TimeStep]) -> dm_env.TimeStep:
        """Run a function, and replace the row numbers in its errors with environment indices.

        A SpecError includes the index of the actor's first environment, to which its row numbers
        are relative.
        """
        assert self._envs is not None, "they are open"
        try:
            return act(self._envs)
        except EnvironmentsFailedError as error:
            failures = {self._env_ids[row]: each for row, each in error.failures.items()}
            raise _failed(failures, self._where) from error
        except SpecError as error:
            raise SpecError(
                f"{self._where}, whose first environment is {self._env_ids[0]}: {error}"
            ) from error


class _Separate(_Environments[MakeEnv]):
    """Individually created environments; the remote ones among them are stepped concurrently."""

    _envs: tuple[dm_env.Environment, ...] = ()

    def open(self) -> EnvironmentSpecs:
        try:
            for index in self._env_ids[len(self._envs) :]:
                try:
                    self._envs += (self._make_env(index),)
                    specs = EnvironmentSpecs.of(self._envs[-1])
                except Exception as error:
                    raise _failed({index: error}, self._where) from error
                self._specs = self._specs or specs
                self._specs.check_same(specs, f"environment {index}")
        except BaseException:
            self.close()
            raise
        assert self._specs is not None
        return self._specs

    def begin(self) -> list[dm_env.TimeStep]:
        return self._each(lambda place: self._envs[place].reset())

    def step(self, actions: Any, latest: Sequence[dm_env.TimeStep]) -> list[dm_env.TimeStep]:
        rows: list[Any] = [
            tree.map_structure(operator.itemgetter(place), actions)
            for place in range(len(self._envs))
        ]

        def start(place: int) -> Any:
            env = self._envs[place]
            if type(env).step is not DmEnvAdaptor.step:
                return None
            action = NO_ACTION if latest[place].last() else rows[place]
            return env._start_step(env._prepare_step(action))

        def finish(place: int) -> dm_env.TimeStep:
            env = self._envs[place]
            if started[place] is not None:
                return env._finish_step(started[place])
            return env.reset() if latest[place].last() else env.step(rows[place])

        # All Steps to remote environments are written before any answer is read.
        started = self._each(start)
        return self._each(finish)

    def put(self, stack: Stack, time: int, latest: Sequence[dm_env.TimeStep]) -> None:
        for place, timestep in enumerate(latest):
            stack.put(time, place, timestep)

    def close(self) -> None:
        envs, self._envs = self._envs, ()
        for env in reversed(envs):
            try:
                env.close()
            except Exception:
                _log.warning("could not close an environment", exc_info=True)

    def _each(self, act: Callable[[int], Any]) -> list[Any]:
        """Run a function for every environment, even if it fails for some of them."""
        results = []
        failures: dict[int, Exception] = {}
        for place, index in enumerate(self._env_ids):
            try:
                results.append(act(place))
            except Exception as error:
                failures[index] = error
        for index, failure in failures.items():
            if isinstance(failure, SpecError):
                raise SpecError(f"environment {index}: {failure}") from failure
        if failures:
            raise _failed(failures, self._where)
        return results


def _failed(failures: Mapping[int, Exception], where: str) -> EnvironmentsFailedError:
    return EnvironmentsFailedError(failures, dict.fromkeys(failures, where))
