"""Servers and rollouts in actors of Ray, which is imported when it is first used."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from dm_env_rpc_client import arguments
from dm_env_rpc_client.distributed.environments import MakeEnv, RemoteEnvironments
from dm_env_rpc_client.distributed.rollouts import Policy, Rollouts, Worker
from dm_env_rpc_client.distributed.trajectories import Batch, EnvironmentSpecs, merge
from dm_env_rpc_client.errors import DeadlineExceededError, EnvironmentsFailedError, SpecError
from dm_env_rpc_client.extras import importing
from dm_env_rpc_client.server.serving import Server, serve
from dm_env_rpc_client.system.keywords import check_keywords
from dm_env_rpc_client.system.waiting import Deadline
from dm_env_rpc_client.transports.net.addresses import HostPort

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.server.options import ServeKeywords

_log = logging.getLogger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""Options of actors, if there are none."""

_END_SECONDS = 5.0


def import_ray() -> Any:
    """Return the package.

    Raises:
      ModuleNotFoundError: it is not installed; says how to install it.
    """
    with importing("ray", "RayRollouts and RayServers need"):
        import ray
    return ray


def result(reference: Any, timeout: float | None = None) -> Any:
    """Return the results of calls to actors, or raise their errors.

    Args:
      reference: the result of `remote`, or a list of results.
      timeout: seconds; None for no limit.

    Raises:
      What the actor raised, caused by Ray's RayTaskError, which has its traceback. Otherwise Ray's
      errors: a RayActorError if the actor is gone, a GetTimeoutError.
    """
    ray = import_ray()
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def end(actors: Iterable[Any], last: str) -> None:
    """End actors; never raise.

    Args:
      actors: their handles.
      last: the method that each is to finish before, if it does so within 5 seconds.
    """
    ray = import_ray()
    handles = list(actors)
    if not handles or not ray.is_initialized():
        return  # The end of Ray was the actors' end.
    with contextlib.suppress(ray.exceptions.RayError):
        calls = [getattr(handle, last).remote() for handle in handles]
        ray.wait(calls, num_returns=len(calls), timeout=_END_SECONDS)
    for handle in handles:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(handle)


class RayServers:
    """N servers of an environment, each in an actor of a Ray cluster. Needs the extra `ray`.

    The actors are spread over the machines of the cluster. Each server listens on the address of
    its machine, at a free port, so other machines can reach it unless the cluster is on loopback:
    it needs `credentials`, or `insecure=True`, as `serve` does.

    If a server's process ends, its clients get a ConnectionLostError; it is not started again.

    Args:
      environment: as for `serve`: a factory, which Ray sends to the actors, or the text
        "module:factory".
      num_servers: how many.
      actor_options: options of the actors, such as `{"num_cpus": 4}`.
      start_timeout: seconds until all must be serving.
      **options: for `serve`, such as `credentials` (whose files are read where the servers are),
        `token`, `insecure` or `processes`.

    Attributes:
      addresses: where they listen, such as ("10.0.0.5:40123", ...), for `make`,
        `BatchedEnvironment` or `RemoteVectorEnv`.

    Raises:
      SpecError: an argument is of another type or out of range.
      DeadlineExceededError: they were not ready in time.
      ModuleNotFoundError: Ray is not installed.
      Otherwise as `serve`. No server stays.
    """

    addresses: tuple[str, ...]

    def __init__(
        self,
        environment: Any,
        num_servers: int = 1,
        *,
        actor_options: Mapping[str, Any] = NO_OPTIONS,
        start_timeout: float | None = 60.0,
        **options: Unpack[ServeKeywords],
    ):
        check_keywords(serve, options)
        num_servers = arguments.count("num_servers", num_servers)
        none = arguments.NO_LIMIT
        start_timeout = arguments.seconds("start_timeout", start_timeout, none=none)
        arguments.mapping("actor_options", actor_options)
        ray = import_ray()
        host = ray.remote(_Host).options(**{"scheduling_strategy": "SPREAD", **actor_options})
        self._hosts = [host.remote() for _ in range(num_servers)]
        try:
            starting = [each.start.remote(environment, options) for each in self._hosts]
            self.addresses = tuple(result(starting, start_timeout))
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise DeadlineExceededError(
                f"{num_servers} servers were not ready within {start_timeout} s; the cluster has "
                f"{ray.available_resources()} left"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all servers; a second call does nothing. Raises nothing."""
        hosts, self._hosts = self._hosts, []
        end(hosts, "stop")

    def __enter__(self) -> RayServers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Host:
    """One server, in its actor."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def start(self, environment: Any, options: ServeKeywords) -> str:
        """Serve on the address of this machine, and return it with the port."""
        address = str(HostPort(import_ray().util.get_node_ip_address(), 0))
        self._server = serve(environment, address, **options)
        return self._server.address

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop(0.0)


_KEPT = 100


class Loss(NamedTuple):
    """A batch that was begun and is not delivered, because its actor was lost.

    Attributes:
      actor: the number of the actor.
      restarts: how often it had been replaced before.
      num_steps: the number of steps that the batch was to have.
      error: the reason of the loss: Ray's own error, or an error of environments.
    """

    actor: int
    restarts: int
    num_steps: int
    error: Exception


@dataclasses.dataclass
class _Actor:
    number: int
    handle: Any = None
    restarts: int = 0
    attempts: int = 0
    """Number of replacements since its last batch."""

    num_steps: int = 0
    deadline: Deadline = dataclasses.field(default_factory=lambda: Deadline.after(None))


class RayRollouts(Rollouts):
    """Rollouts in actors of a Ray cluster. Needs the extra `ray`.

    An actor is replaced if its process is gone, if it takes longer than `batch_timeout`, or if one
    of its environments fails or cannot be made. The batch that it was to deliver is lost: it is
    counted in `num_lost`, kept in `losses`, logged as a warning, and never delivered later. The new
    actor makes environments with the same indices, whose first TimeStep is FIRST. Other actors go
    on.

    `collect` returns a batch of every actor also then: the new actor begins another one. What the
    policy raises, and a SpecError, is raised here, and the actor stays. If `collect` raises, or an
    iterator of `stream` is closed, unfinished batches are dropped, which `num_dropped` counts;
    `Batch.start` shows the gap.

    Args:
      make_env: see `Rollouts`, as for all arguments that are not mentioned here. Ray sends it to
        the actors, so it may be a lambda.
      policy: the same.
      num_actors: the same.
      envs_per_actor: the same.
      weights: the same. Ray sends them to each machine once.
      seed: the same.
      attempts: how often an actor is replaced without having delivered a batch in between.
      start_timeout: seconds until all actors must have made their environments.
      batch_timeout: seconds that a batch may take, the making of environments in a new actor
        included; None for no limit. It is for actors that freeze.
      actor_options: options of the actors, such as `{"num_cpus": 1}`. Ray's default is to start
        them all, however many processors there are.

    Attributes:
      restarts: how often actors were replaced.
      num_lost: how many batches were lost.
      num_dropped: how many batches were dropped because `collect` raised or `stream` was closed.

    Raises:
      SpecError: an argument is of another type or out of range, or environments have different
        specs.
      EnvironmentsFailedError: an environment could not be made. No actor stays.
      DeadlineExceededError: the actors were not ready in time.
      ModuleNotFoundError: Ray is not installed.
      Otherwise the errors of Ray.
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
        attempts: int = 5,
        start_timeout: float | None = 60.0,
        batch_timeout: float | None = None,
        actor_options: Mapping[str, Any] = NO_OPTIONS,
    ):
        super().__init__(make_env, policy, num_actors, envs_per_actor, weights, seed)
        self._attempts = arguments.count("attempts", attempts, least=0)
        none = arguments.NO_LIMIT
        start_timeout = arguments.seconds("start_timeout", start_timeout, none=none)
        self._batch_timeout = arguments.seconds("batch_timeout", batch_timeout, none=none)
        arguments.mapping("actor_options", actor_options)
        self._ray = ray = import_ray()
        self._class = ray.remote(Worker).options(**{"max_restarts": 0, **actor_options})
        self._under_way: dict[Any, _Actor] = {}
        self._shared_weights = ray.put(weights)
        self._losses: collections.deque[Loss] = collections.deque(maxlen=_KEPT)
        self.num_lost = self.num_dropped = self.restarts = 0
        self._fleet = [_Actor(number) for number in self._actors]
        try:
            for actor in self._fleet:
                self._start(actor, None)
            self._specs = self._wait_until_open(start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def losses(self) -> Sequence[Loss]:
        """The last 100 batches that were lost, oldest first."""
        return list(self._losses)

    def update(self, weights: Any) -> None:
        """Set the policy's weights for all batches that begin from now on.

        Args:
          weights: whatever the policy takes, such as arrays. The policy gets a copy whose arrays
            are read-only.
        """
        self._shared_weights = self._ray.put(weights)
        super().update(weights)

    def stream(self, num_steps: int) -> Iterator[Batch]:
        """Take steps endlessly while the caller does other work.

        Each actor begins its next batch when one is delivered, with the weights of that moment.
        `Batch.version` says which weights a batch had.

        Args:
          num_steps: the number of steps in a batch, T.

        Returns:
          An iterator over batches of one actor each, in the order in which they are ready. If it is
          closed or forgotten, unfinished batches are dropped.

        Raises:
          As `collect`.
        """
        return super().stream(num_steps)

    def _check(self, num_steps: int) -> None:
        super()._check(num_steps)
        if self._under_way:
            raise SpecError("an iterator of stream() is in use; close it first")

    def _collect_each(self, num_steps: int) -> Sequence[Batch]:
        batches: dict[int, Batch] = {}
        try:
            for actor in self._fleet:
                self._submit(actor, num_steps)
            while True:
                if not self._under_way:
                    break
                actor, batch = self._receive()
                batches[actor.number] = batch
        except BaseException:
            self._drop(len(batches))
            raise
        return [batches[number] for number in self._actors]

    def _stream(self, num_steps: int) -> Iterator[Batch]:
        self._check(num_steps)
        try:
            for actor in self._fleet:
                self._submit(actor, num_steps)
            while True:
                actor, batch = self._receive()
                self._submit(actor, num_steps)
                # A copy: what Ray returns is read-only and takes room in its object store.
                yield merge([batch])
                self._check_open()
        finally:
            self._drop()

    def _start(self, actor: _Actor, specs: EnvironmentSpecs | None) -> None:
        actor.handle = self._class.remote(
            self._make_env,
            self._policy,
            self._env_ids(actor.number),
            actor.number,
            self._seed,
            actor.restarts,
            specs,
        )

    def _wait_until_open(self, timeout: float | None) -> EnvironmentSpecs:
        opening = {actor.handle.open.remote(): actor for actor in self._fleet}
        deadline = Deadline.after(timeout)
        opened: dict[int, EnvironmentSpecs] = {}
        while opening:
            ready, _ = self._ray.wait(list(opening), timeout=deadline.remaining)
            if not ready:
                raise DeadlineExceededError(
                    f"{len(opening)} of {len(self._fleet)} actors have not made their environments "
                    f"within {timeout} s; the cluster has {self._ray.available_resources()} left"
                )
            opened[opening.pop(ready[0]).number] = result(ready[0])
        for number in self._actors:
            opened[0].check_same(opened[number], f"environment {self._env_ids(number)[0]}")
        return opened[0]

    def _submit(self, actor: _Actor, num_steps: int) -> None:
        actor.num_steps = num_steps
        actor.deadline = Deadline.after(self._batch_timeout)
        reference = actor.handle.collect.remote(num_steps, self.version, self._shared_weights)
        self._under_way[reference] = actor

    def _receive(self) -> tuple[_Actor, Batch]:
        """Wait for a batch; replace actors that are lost meanwhile."""
        while True:
            first = min(actor.deadline for actor in self._under_way.values())
            ready, waiting = self._ray.wait(list(self._under_way), timeout=first.remaining)
            for reference in ready:
                actor = self._under_way.pop(reference)
                try:
                    batch: Batch = result(reference)
                except (self._ray.exceptions.RayError, EnvironmentsFailedError) as error:
                    self._lose(actor, error)
                else:
                    actor.attempts = 0
                    return actor, batch
            if not ready:
                late = [each for each in waiting if self._under_way[each].deadline.has_passed]
                for reference in late:
                    actor = self._under_way.pop(reference)
                    text = f"actor {actor.number} took longer than {self._batch_timeout} s"
                    self._lose(actor, DeadlineExceededError(text))

    def _lose(self, actor: _Actor, error: Exception) -> None:
        """Report the batch of an actor as lost, and has another actor begin one."""
        self.num_lost += 1
        self._losses.append(Loss(actor.number, actor.restarts, actor.num_steps, error))
        _log.warning("lost a batch of actor %d, which is replaced: %s", actor.number, error)
        if isinstance(error, EnvironmentsFailedError):
            end([actor.handle], "close")
        else:
            self._ray.kill(actor.handle)
        actor.restarts += 1
        actor.attempts += 1
        self.restarts += 1
        self._start(actor, self._specs)
        if actor.attempts > self._attempts:
            actor.attempts = 0
            raise error
        self._submit(actor, actor.num_steps)

    def _drop(self, received: int = 0) -> None:
        """Forget unfinished batches, and batches that cannot be delivered without them."""
        if count := len(self._under_way) + received:
            self._under_way.clear()
            self.num_dropped += count
            _log.info("dropped %d batches", count)

    def _close(self) -> None:
        self._under_way.clear()
        end([actor.handle for actor in self._fleet if actor.handle is not None], "close")
