"""Servers in actors of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client.distributed.ray_package import NO_OPTIONS, end, import_ray, result
from dm_env_rpc_client.errors import DeadlineExceededError
from dm_env_rpc_client.server.hosting import Server, serve
from dm_env_rpc_client.system.keywords import check_keywords
from dm_env_rpc_client.transports.net.addresses import HostPort

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.server.options import ServeKeywords


class RayServers:
    """N servers of an environment, each in an actor of a Ray cluster. Needs the extra `ray`.

    The actors are spread over the machines of the cluster. Each server listens on the address of
    its machine, at a free port, so other machines can reach it unless the cluster is on loopback:
    it needs `credentials`, or `insecure=True`, as `serve` does.

    If a server's process ends, its clients get a ConnectionLostError; it is not started again.

    Args:
      environment: as for `serve`: what makes an environment, which Ray sends to the actors, or the
        text "module:factory".
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
        """Stops all servers; a second call does nothing. Raises nothing."""
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
        """Serves on the address of this machine, and returns it with the port."""
        address = str(HostPort(import_ray().util.get_node_ip_address(), 0))
        self._server = serve(environment, address, **options)
        return self._server.address

    def stop(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.stop(0.0)
