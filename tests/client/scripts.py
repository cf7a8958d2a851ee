"""What servers do whose clients have to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from dm_env_rpc_client.testing import Request, Response, echo


def silent(requests: Iterator[Request], _: object) -> Iterator[Response]:
    """Never answers."""
    for _ in requests:
        yield from ()


def held(until: threading.Event) -> Any:
    """Answers with the same, from an event on."""

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        assert until.wait(30)
        yield from echo(requests, context)

    return script
