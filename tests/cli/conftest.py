from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from dm_env_rpc_client.server import Catch, serve
from tests.cli.commands import Peers, end_started, listening
from tests.support.environments import Broken


@pytest.fixture(autouse=True)
def _end_started() -> Iterator[None]:
    yield
    end_started()


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with (
        serve(Catch) as catch,
        serve(Broken) as broken,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web,
        listening(lambda connection: None) as silent,
        listening(lambda connection: connection.close()) as hangs_up,
        socket.socket() as unused,
    ):
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        # Bound but not listening: nobody else takes the port, and connections are refused.
        unused.bind(("127.0.0.1", 0))
        yield Peers(
            catch.address,
            broken.address,
            f"127.0.0.1:{web.server_port}",
            silent,
            hangs_up,
            f"127.0.0.1:{unused.getsockname()[1]}",
        )
        web.shutdown()
        thread.join(5)
