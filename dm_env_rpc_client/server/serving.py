"""The `serve` function, which hosts worlds behind a listener, with a session for each stream."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client.server.activity import ServerStats
from dm_env_rpc_client.server.errors import ErrorLog
from dm_env_rpc_client.server.factories import Hosted
from dm_env_rpc_client.server.host import Host, listener_options
from dm_env_rpc_client.server.observed_session import open_session
from dm_env_rpc_client.server.options import ANYWHERE, ServeOptions
from dm_env_rpc_client.server.processes.worker_pool import Workers
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.making import Kind
from dm_env_rpc_client.server.worlds.world import Game, World
from dm_env_rpc_client.system.foreign_environments import AS_DECLARED, Conversion
from dm_env_rpc_client.system.keywords import check_keywords, takes
from dm_env_rpc_client.system.waiting import telling
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.net.credentials import Tls as Tls  # noqa: PLC0414  # for `server`

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.server.options import HostKeywords

_log = logging.getLogger(__name__)

_TOLD_SECONDS = 1.0
"""The time, in seconds, after the grace period until `stop` logs what it waits for."""

STOP_SECONDS = 1.0
"""Maximum time, in seconds, for which open streams may continue when the server stops."""


class _InThisProcess:
    """A host that serves clients in threads of this process."""

    def __init__(self, options: ServeOptions, properties: Properties):
        self._host = host = Host(options, ErrorLog(), properties)
        served = listener_options(options, host.activity, functools.partial(open_session, host))
        try:
            # An invalid environment fails here, where its author sees it, not at the first client.
            host.worlds.try_instances()
            self._listener = open_listener(
                served, options.address, options.credentials, options.transport
            )
        except BaseException:
            host.worlds.abandon()
            raise
        self.address = self._listener.address
        self._is_stopped = False

    def wait(self, timeout: float | None) -> bool:
        main = self._host.main
        if main is None:
            return self._listener.wait(timeout)
        return main.work_until(lambda: self._is_stopped, timeout)

    @property
    def errors(self) -> list[BaseException]:
        return self._host.error_log.kept

    def stats(self) -> ServerStats:
        host = self._host
        return host.activity.stats(len(host.worlds), host.worlds.agent_count, host.error_log.count)

    def stop(self, grace: float) -> bool:
        main = self._host.main
        if main is None:
            return self._stop(grace)
        # The main thread keeps executing calls of environments: closing them needs it.
        return main.aside(functools.partial(self._stop, grace))

    def _stop(self, grace: float) -> bool:
        # Streams end before worlds are closed: a step in progress still uses its environment.
        self._listener.stop(grace)
        is_clean = self._host.worlds.close()
        self._end_waiting()
        return is_clean

    def awaited(self) -> str:
        if not self._listener.wait(0.0):
            return f"{self._host.activity.streams} streams to end"
        return self._host.worlds.closes or "its worlds"

    def abort(self) -> None:
        self._listener.abort()
        self._host.worlds.abandon()
        self._end_waiting()

    def _end_waiting(self) -> None:
        # Set before the wake-up, after which `wait` reads it.
        self._is_stopped = True
        if self._host.main is not None:
            self._host.main.wake()


class Server:
    """A running server, returned by `serve`.

    Attributes:
      address: where it listens, such as "localhost:40123".
    """

    def __init__(self, serving: _InThisProcess | Workers):
        self.address = serving.address
        self._serving = serving
        self._is_clean = True
        # Runs when the server is garbage-collected, and when the interpreter exits.
        self._finalizer = weakref.finalize(self, serving.abort)
        _log.info("serving at %s", self.address)

    @property
    def errors(self) -> list[BaseException]:
        """The last 100 exceptions raised by environments or by the server itself, oldest first.

        The client whose request caused an exception received it as an INTERNAL error.
        """
        return self._serving.errors

    @property
    def world_count(self) -> int:
        """The number of existing worlds."""
        return self.stats().worlds

    @property
    def agent_count(self) -> int:
        """The number of agents currently joined to worlds."""
        return self.stats().agents

    def stats(self) -> ServerStats:
        """Return the server's activity and its current state."""
        return self._serving.stats()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has stopped.

        With `thread="main"`, the waiting thread makes all calls to environments, but only while it
        waits.

        Args:
          timeout: time limit in seconds; 0 checks only once, None sets no limit.

        Returns:
          Whether the server has stopped.

        Raises:
          SpecError: the timeout is invalid.
          RuntimeError: with `thread="main"`, another thread has waited before and therefore owns
            the environments.
        """
        none = arguments.NO_LIMIT
        return self._serving.wait(arguments.seconds("timeout", timeout, least=0.0, none=none))

    def stop(self, grace: float = STOP_SECONDS) -> bool:
        """Stop serving and close the worlds. A second call does nothing.

        Args:
          grace: seconds after which open streams are cancelled.

        If this takes a second longer than the grace, the log says what it waits for. A worker
        process is killed if it does not end; in whatever state it is, it is not waited for longer
        than the grace and 30 s.

        Returns:
          Whether all environments were closed: False if a step was still running, if a `close`
          raised an exception, or if a process had to be killed; `errors` contains the reasons.
        """
        grace = arguments.seconds("grace", grace, least=0.0)
        # Only one call can detach it, so that a second one, or another thread's, does nothing.
        if self._finalizer.detach() is not None:
            with telling(self._tell_awaited, grace + _TOLD_SECONDS):
                self._is_clean = self._serving.stop(grace)
            _log.info("stopped serving at %s", self.address)
        return self._is_clean

    def _tell_awaited(self) -> None:
        _log.warning("the server at %s still waits for %s", self.address, self._serving.awaited())

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Server at {self.address}: {stats.worlds} worlds, {stats.agents} agents>"

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.tensors.displays.connections import show_facts

        facts = {
            "address": self.address,
            "worlds": self.world_count,
            "agents": self.agent_count,
            "errors": "; ".join(map(repr, self.errors)) or "none",
        }
        return show_facts("Server", facts)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop(0.0)


@takes(ServeOptions)
def serve(
    environment: Hosted | World | Game | Mapping[str, Hosted],
    address: str = ANYWHERE,
    *,
    properties: Properties | None = None,
    **keywords: Unpack[HostKeywords],
) -> Server:
    """Serve environments to dm_env_rpc clients.

    Each CreateWorld creates a new world: a dm_env.Environment, for one agent at a time, or a
    `Game`, for several agents.

    Nested specs are sent as flat names with periods between levels; reward and discount are
    observations. An episode that ends with discount 0 is TERMINATED; any other episode is
    INTERRUPTED. The settings of a Reset or a ResetWorld override those with which the world was
    created, and the environment is recreated with them. However, a `Game` itself applies the
    settings of a ResetWorld, and an environment with `configure` itself applies the settings of a
    Reset that it lists in `reset_settings`. When a client disconnects, its agent leaves. A world
    without agents stays until it is destroyed, or until `idle_world_seconds` after the end of the
    connection that created it.

    Args:
      environment: a callable that takes the settings of a CreateWorld as keyword arguments and
        returns a dm_env.Environment, a gymnasium.Env or gymnasium.vector.VectorEnv, a PettingZoo
        environment, a `Game` or a `World`; or a string that specifies one, as for
        `dm-env-rpc serve`: "module:factory", "gymnasium://CartPole-v1", "pettingzoo://FAMILY/NAME",
        "dm_control://DOMAIN/TASK", "bsuite://ID", "catch" or "race". Or an existing environment:
        one world at a time uses it, one thread of the server makes all calls, and `stop` closes
        it. Or a dict that maps names to such sources; the create setting "environment" selects one
        by name. Or a `Game` or a `World` itself, which is then the only world and has the empty
        name.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      **keywords: the fields of `ServeOptions`.
      properties: properties that all clients can read and write, joined or not. If an environment
        or a game has an attribute `properties` of this type, the clients joined to it can use
        those properties, too. For an environment, the attribute can instead be a mapping from keys
        to functions that return the values; or the environment can have the methods of
        `HasStringProperties`, which the server calls.

    Returns:
      The running Server.

    Raises:
      SpecError: an argument has the wrong type or is out of range; plaintext is requested without
        `insecure` on an address that other machines can reach; a factory is not callable, or does
        not make environments; a string specifies an environment that does not exist or is not
        installed; an environment cannot be served; `credentials` have no certificate, or an
        unreadable file; a token has characters other than printable ASCII; or the requirements of
        `processes` are not met: Linux, and environments that another process can import.
      TypeError: a method of an existing environment does not return specs.
      OSError: the address is taken, or does not belong to this machine; or a worker process ended
        while it started (ChildProcessError).
    """
    check_keywords(serve, keywords)
    options = ServeOptions(environment=environment, address=address, **keywords)
    arguments.instance("properties", properties, Properties, "a Properties", none="None")
    serving = _InThisProcess if options.processes is None else Workers
    return Server(serving(options, Properties() if properties is None else properties))


def try_out(
    environment: Hosted, settings: Mapping[str, Any], conversion: Conversion = AS_DECLARED
) -> None:
    """Create a world as if for a client, and then close it.

    Args:
      environment: as for `serve`.
      settings: values by flat name, as of a CreateWorld.
      conversion: how environments from other libraries are converted.

    Raises:
      RequestError: the environment does not accept these settings.
      Exception: raised while the world is created or closed; or the world cannot be served.
    """
    options = ServeOptions(environment=environment, **conversion._asdict())
    (factory,) = options.factories().values()
    kind = Kind(factory, options)
    kind.make(settings).close()
