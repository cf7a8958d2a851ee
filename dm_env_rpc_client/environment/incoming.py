"""Environments that dial in: their servers connect to the program that uses them.

On clusters, behind NAT and inside engines the program that trains has the known address, not the
environment. So the program listens, and the servers dial:

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve

with (
    dm_env_rpc_client.listen("localhost:0") as incoming,
    serve(Catch, dial=incoming.address),
    incoming.make({"rows": 5}, timeout=60.0) as env,
):
    print(env.reset().observation["board"].shape)  # (5, 5)
```

`serve(..., dial_environments=8)` offers eight environments, each a world of its own, to this and
other programs at that address; `dm-env-rpc serve X --dial HOST:PORT --environments 8` does the same
from the command line, and with `processes=` the processes share them. Wherever an address is taken,
`incoming` is taken, too: `make(incoming)`, `BatchedEnvironment(incoming, num_envs=64)`,
`RemoteVectorEnv(incoming, num_envs=64)`. As many servers as wait share the environments of a batch
evenly; those of one server share a socket. `timeout` is how long may be waited for servers.

A server that is not needed waits, and so does one that comes later. A server dials again, with
growing pauses of up to 5 seconds, for as long as it runs: whether nobody listens yet, the program
has ended or the connection was lost. It has its environments back when the connection has ended.
With `restart=Restart()` an environment whose server was lost goes on with another one that waits.

A program cannot connect to a server that dialed in, so `connection.reopen()` raises
ConnectionLostError. What is left of a lost environment is destroyed by its server, after
`serve(idle_world_seconds=...)`.

## Security

Plaintext stays on loopback, unless both ends pass `insecure=True`. For TLS the program has the
certificate, and servers check it; with `ca` the program requires a certificate of the servers, too.
With `token` a server that does not send the same is refused before anything is served:

```text
incoming = dm_env_rpc_client.listen(
    "0.0.0.0:5000",
    credentials=Tls(cert="trainer.crt", key="trainer.key", ca="ca.crt"),
    token=secret,
)
serve(
    Engine,
    dial="trainer:5000",
    credentials=Tls(ca="ca.crt", cert="engine.crt", key="engine.key"),
    token=secret,
)
```

## For servers in other languages

Nothing of dm_env_rpc changes, nor of HTTP/2: the program is the client, the server the server. Only
who opens the connection is turned around, so before HTTP/2 both say a few lines of JSON:

| who | line |
| --- | --- |
| server | `{"dm_env_rpc_dial": 1, "environments": 8, "token": "..."}` |
| program | `{"code": "OK"}`, or `{"code": "UNAUTHENTICATED", "text": "..."}` |
| program, later | `{"environments": 5}` |

The server says how many environments it offers, and the token if one is required. The program
welcomes it, or names another code of gRPC and closes the connection. Then both are silent until the
program needs environments: it says how many, at most as many as were offered, and goes on with the
connection preface of HTTP/2 (RFC 9113, section 3.4). It opens at most so many streams at a time.
What is left of those that were offered, the server offers over another connection.

Lines are UTF-8, end with a line feed and have at most 4096 bytes. With TLS the server is its client
and offers the ALPN protocol `dm_env_rpc-dial`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.environment import worlds
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.http2.incoming import IncomingSockets

__all__ = ["Incoming", "listen"]


class Incoming(IncomingSockets):
    """Where servers dial in; made by `listen`. Any thread may use it.

    Attributes:
      address: where it listens, with the port that it got.
      refused: how many servers were turned away.
    """

    def make(
        self,
        create_world_settings: Mapping[str, Any] = NO_SETTINGS,
        join_world_settings: Mapping[str, Any] = NO_SETTINGS,
        **make_kwargs: Any,
    ) -> DmEnvAdaptor:
        """Creates and joins a world on a server that has dialed in; waits for one.

        Args:
          create_world_settings: values by name, nested or flat; see `pack_settings`.
          join_world_settings: the same.
          **make_kwargs: as for `dm_env_rpc_client.make`, such as `timeout`, the seconds to wait for
            a server, and `restart`; but nothing about how to connect.

        Returns:
          The environment. When it is closed, the server can be used again.

        Raises:
          DeadlineExceededError: no server dialed in within `timeout`.
          ConnectionClosedError: `close` was called. Otherwise as `make`.
        """
        return worlds.make(self, create_world_settings, join_world_settings, **make_kwargs)

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Incoming at {self.address}: {self.waiting} environments wait>"


def listen(
    address: str,
    *,
    credentials: ServerCredentials | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> Incoming:
    """Listens for servers of environments that dial in, as `serve(dial=...)` does.

    Args:
      address: `host:port` or `unix:path`; port 0 takes a free one.
      credentials: a `Tls` with `cert` and `key`, and with `ca` if the servers need a certificate;
        or an ssl.SSLContext of a server; None for plaintext.
      token: a secret that the servers have to send; None lets everybody in.
      insecure: allow plaintext on an address that other machines can reach.

    Returns:
      The Incoming; close it, or use it as a context manager. Environments that were made stay.

    Raises:
      SpecError: plaintext on an address that other machines can reach, without `insecure`; wrong
        credentials or a wrong token; or the system is not Linux.
      OSError: the address is taken, or does not belong to this machine.
    """
    return Incoming(address, credentials, token, insecure)
