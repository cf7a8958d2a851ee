"""`dm-env-rpc health`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import print_json, print_text, waiting
from dm_env_rpc_client.cli.failures import REFUSED
from dm_env_rpc_client.cli.group import examples

EXAMPLES = examples(
    "dm-env-rpc health localhost:50051",
    "dm-env-rpc health localhost:50051 --timeout 60       # wait until it has started",
    "dm-env-rpc health engine.example:443 --tls-ca system --json",
)

_LONGEST_NAME = 127


def _check_service(name: str) -> str:
    if len(name.encode()) > _LONGEST_NAME:
        raise typer.BadParameter(f"the name must be at most {_LONGEST_NAME} bytes long")
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Server(options.Server):
    """The server and the service to query.

    Attributes:
      service: Service to query, such as dm_env_rpc.v1.Environment; if not given, the whole server.
    """

    service: Annotated[str, typer.Option(metavar="NAME", callback=_check_service)] = ""
    timeout: float = 5.0


@options.with_options
def health(*, server: _Server, as_json: options.Json = False) -> None:
    """Ask a server through the gRPC health service whether it is serving.

    Works with any gRPC server. If the server does not listen yet, the command waits until the
    timeout. Exit codes: 0 it is serving; 1 it is not serving, or has no health service; 3 no
    connection, or no answer in time.
    """
    from dm_env_rpc_client.transports.endpoint import Endpoint
    from dm_env_rpc_client.transports.health_check import (
        SERVING,
        UNIMPLEMENTED,
        check_health,
    )

    server.check_address()
    address, service = server.address, server.service
    endpoint = Endpoint(address, **server.secured())
    with waiting(f"asking {address}"):
        answered = check_health(endpoint, service, server.timeout)
    asked = f"{service} at {address}" if service else address
    if as_json:
        result = {"address": address, "service": service, "status": answered.status}
        print_json({**result, "seconds": answered.seconds})
    elif answered.status == UNIMPLEMENTED:
        print_text(f"{address} answers, but has no health service ({UNIMPLEMENTED})")
    else:
        print_text(f"{asked} is {answered.status}, answered in {answered.seconds * 1e3:.1f} ms")
    if answered.status != SERVING:
        raise typer.Exit(REFUSED)
