"""Servers and rollouts in Ray actors.

Ray is imported on first use.
"""

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
from dm_env_rpc_client.system.secrets import hidden
from dm_env_rpc_client.system.waiting import Deadline
from dm_env_rpc_client.transports.net.addresses import HostPort

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.server.options import ServeKeywords

_log = logging.getLogger(__name__)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""The default actor options, which are empty."""

_END_SECONDS = 5.0


def import_ray() -> Any:
    """Import and return Ray.

    Raises:
      ModuleNotFoundError: Ray is not installed; the message explains how to install it.
    """
    with importing("ray", "RayRollouts and RayServers need"):
        import ray
    return ray


def result(reference: Any, timeout: float | None = None) -> Any:
    """Return the results of actor calls, or raise the errors of these calls.

    Args:
      reference: the result of `remote`, or a list of results.
      timeout: time limit in seconds; None for no limit.

    Raises:
      The actor's own exception, chained to Ray's RayTaskError with the traceback. Otherwise Ray's
      errors, such as RayActorError for a dead actor, or GetTimeoutError.
    """
    ray = import_ray()
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise


def end(actors: Iterable[Any], last: str) -> None:
    """End actors without ever raising an exception.

    Args:
      actors: the handles of the actors.
      last: the name of a method to call first, with up to 5 seconds to finish.
    """
    ray = import_ray()
    handles = list(actors)
    if not handles or not ray.is_initialized():
        return  # Shutting down Ray has already ended the actors.
    with contextlib.suppress(ray.exceptions.RayError):
        calls = [getattr(handle, last).remote() for handle in handles]
        ray.wait(calls, num_returns=len(calls), timeout=_END_SECONDS)
    for handle in handles:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(handle)


class RayServers:
    """Several servers that serve the same environment, each in an actor on a Ray cluster.

    This class requires the `ray` extra.

    The actors are spread over the machines of the cluster. Each server listens on a free port at
    the address of its machine. Unless the cluster is on loopback, other machines can reach each
    server, so `credentials` or `insecure=True` is required, as for `serve`.

    If a server's process ends, its clients get a ConnectionLostError, and the server is not
    restarted.

    Args:
      environment: a factory, which Ray sends to the actors, or the string "module:factory", as for
        `serve`.
      num_servers: the number of servers.
      actor_options: options of the actors, such as `{"num_cpus": 4}`.
      start_timeout: time limit, in seconds, for all servers to start.
      **options: arguments of `serve`, such as `credentials` (read on the servers' machines),
        `token`, `insecure` or `processes`.

    Attributes:
      addresses: the addresses of the servers, such as ("10.0.0.5:40123", ...), for `make`,
        `BatchedEnvironment` or `RemoteVectorEnv`.

    Raises:
      SpecError: an argument has the wrong type or is out of range.
      DeadlineExceededError: the servers were not ready in time.
      ModuleNotFoundError: Ray is not installed.
      Otherwise as `serve`. After an error, no server remains.
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
            # Ray shows an argument that it cannot pickle.
            given = hidden(options)
            starting = [each.start.remote(environment, given) for each in self._hosts]
            self.addresses = tuple(result(starting, start_timeout))
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise DeadlineExceededError(
                f"{num_servers} servers were not ready within {start_timeout} s; resources left "
                f"in the cluster: {ray.available_resources()}"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all servers without ever raising an exception.

        A second call does nothing.
        """
        hosts, self._hosts = self._hosts, []
        end(hosts, "stop")

    def __enter__(self) -> RayServers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Host:
    """The actor that runs one server."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def start(self, environment: Any, options: ServeKeywords) -> str:
        """Serve `environment` at this machine's address, and return the address with the port."""
        address = str(HostPort(import_ray().util.get_node_ip_address(), 0))
        self._server = serve(environment, address, **options)
        return self._server.address

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop(0.0)


_KEPT = 100


class Loss(NamedTuple):
    """A batch that was never delivered because its actor was lost.

    Attributes:
      actor: the number of the actor.
      restarts: the number of its earlier replacements.
      num_steps: the requested number of steps.
      error: the reason for the loss: an error from Ray, or from environments.
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
    """The number of times that the actor has been replaced since its last batch."""

    num_steps: int = 0
    deadline: Deadline = dataclasses.field(default_factory=lambda: Deadline.after(None))


class RayRollouts(Rollouts):
    """Rollouts that run in actors on a Ray cluster.

    This class requires the `ray` extra.

    An actor is replaced if its process dies, if it exceeds `batch_timeout`, or if an environment
    fails or cannot be created. The pending batch of such an actor is lost. A lost batch is counted
    in `num_lost`, kept in `losses`, logged as a warning, and never delivered later. The new actor
    creates environments with the same indices, whose first TimeStep is FIRST. Other actors
    continue.

    Even if a batch is lost, `collect` returns a batch from every actor, because the new actor
    begins another batch. SpecErrors and exceptions of the policy are raised in this process, and
    the actor is kept. If `collect` raises, or an iterator of `stream` is closed, unfinished
    batches are dropped and counted in `num_dropped`; `Batch.start` shows the gap.

    Args:
      make_env: as for `Rollouts`. Ray sends it to the actors, so it can be a lambda.
      policy: the policy, as for `Rollouts`.
      num_actors: the number of actors.
      envs_per_actor: the number of environments in each actor.
      weights: the policy's initial weights. Ray sends them to each machine once.
      seed: the seed of the random generators, as for `Rollouts`.
      attempts: the maximum number of consecutive times that an actor is replaced without
        delivering a batch.
      start_timeout: time limit, in seconds, for all actors to create their environments.
      batch_timeout: time limit, in seconds, for a batch, including the creation of environments in
        a new actor; None for no limit. It detects frozen actors.
      actor_options: options of the actors, such as `{"num_cpus": 1}`. By default, Ray starts all
        actors regardless of the number of processors.

    Attributes:
      restarts: the number of replaced actors.
      num_lost: the number of lost batches.
      num_dropped: the number of batches dropped because `collect` raised or `stream` was closed.

    Raises:
      SpecError: an argument has the wrong type or is out of range, or environments have different
        specs.
      EnvironmentsFailedError: an environment could not be created. No actor remains.
      DeadlineExceededError: the actors were not ready in time.
      ModuleNotFoundError: Ray is not installed.
      Otherwise, errors raised by Ray.
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
        """The last 100 lost batches, from oldest to newest."""
        return list(self._losses)

    def update(self, weights: Any) -> None:
        """Set the policy's weights for all batches that begin after this call.

        Args:
          weights: the new weights, such as arrays. The policy gets a copy with read-only arrays.
        """
        self._shared_weights = self._ray.put(weights)
        super().update(weights)

    def stream(self, num_steps: int) -> Iterator[Batch]:
        """Take steps endlessly while the caller does other work.

        Each actor begins its next batch, with the weights at that time, when its previous batch is
        delivered. `Batch.version` identifies a batch's weights.

        Args:
          num_steps: the number of steps in a batch, T.

        Returns:
          An iterator over batches, each from one actor, in order of completion. Closing or
          garbage-collecting the iterator drops unfinished batches.

        Raises:
          As `collect`.
        """
        return super().stream(num_steps)

    def _check(self, num_steps: int) -> None:
        super()._check(num_steps)
        if self._under_way:
            raise SpecError("an iterator returned by stream() is in use; close it first")

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
                # Ray's results are read-only and occupy its object store, so `merge` copies them.
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
                    f"{len(opening)} of {len(self._fleet)} actors did not create their "
                    f"environments within {timeout} s; resources left in the cluster: "
                    f"{self._ray.available_resources()}"
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
        """Wait for a batch, replacing any actors that are lost in the meantime."""
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
        """Report the batch of an actor as lost, and replace the actor."""
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
        """Drop unfinished batches, and finished batches that cannot be delivered without them."""
        if count := len(self._under_way) + received:
            self._under_way.clear()
            self.num_dropped += count
            _log.info("dropped %d batches", count)

    def _close(self) -> None:
        self._under_way.clear()
        end([actor.handle for actor in self._fleet if actor.handle is not None], "close")
