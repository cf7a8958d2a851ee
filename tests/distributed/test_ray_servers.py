"""Servers in actors of Ray."""

from __future__ import annotations

import os
import ssl
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionLostError,
    DeadlineExceededError,
    SpecError,
    connect,
    make,
)
from dm_env_rpc_client.distributed import RayServers, on_ray
from tests.support.environments import Echo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Telling(Echo):
    """Observes its process."""

    def step(self, action: Any) -> Any:
        return super().step({"value": os.getpid()})


def test_servers_of_a_cluster_have_addresses(ray: Any) -> None:
    with RayServers(Telling, num_servers=2, token="secret") as servers:
        assert len(set(servers.addresses)) == 2
        with BatchedEnvironment(servers.addresses, 4, token="secret") as envs:
            envs.reset()
            pids = envs.step({"value": np.zeros(4, int)}).observation["value"]
        assert pids[0] == pids[2] != pids[1] == pids[3]
        assert os.getpid() not in pids
        with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED"):
            make(servers.addresses[0])
    for address in servers.addresses:
        with pytest.raises(ConnectionLostError):
            connect(address, timeout=2.0)
    servers.close()


def test_what_ray_cannot_pickle_shows_no_token(ray: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(TypeError, match="Could not serialize the argument") as caught:
        RayServers(Echo, token="secret", credentials=context)
    assert "<hidden>" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_module_and_a_name(ray: Any) -> None:
    with RayServers("tests.support.environments:Echo", processes=1) as servers:
        (address,) = servers.addresses
        with make(address) as env:
            env.reset()
            assert env.step({"value": 3}).observation["value"] == 3


def test_what_serve_refuses_is_refused_here(ray: Any) -> None:
    with pytest.raises(SpecError, match="idle_world_seconds"):
        RayServers(Echo, idle_world_seconds=-1.0)
    with pytest.raises(SpecError, match="num_servers"):
        RayServers(Echo, 0)
    with pytest.raises(DeadlineExceededError, match=r"1 servers .*within 0.5 s.*CPU"):
        RayServers(Echo, start_timeout=0.5, actor_options={"num_cpus": 5})


def test_plaintext_stays_on_loopback(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine of a cluster that others reach.
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    host = on_ray._Host()
    with pytest.raises(SpecError, match=r"other machines can reach 192\.0\.2\.1:0"):
        host.start(Echo, {})
    host.stop()
