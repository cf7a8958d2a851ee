"""Clients in other languages play on a server of several processes."""

from __future__ import annotations

import contextlib
import json

import pytest

from dm_env_rpc_client.server import serve
from tests.peers import cpp_peers
from tests.peers.building import MissingToolchainError
from tests.server.hosted import Quiet
from tests.support.groups import skip


@pytest.mark.parametrize("peer", ["cpp"])
def test_clients_play(peer: str) -> None:
    with serve(Quiet, processes=2) as server, contextlib.ExitStack() as stack:
        try:
            clients = [
                stack.enter_context(cpp_peers.bare_client(server.address, "", 0)) for _ in range(4)
            ]
        except MissingToolchainError as error:
            skip(f"{peer} peer", str(error))
        for client in clients:
            client.tell("4 100")  # So many requests in flight, and in all.
        for client in clients:
            assert json.loads(client.hear())["seconds"] > 0
        stats = server.stats()
        assert (stats.worlds, stats.agents, stats.steps) == (4, 4, 400)
        assert server.errors == []
