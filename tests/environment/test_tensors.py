"""TimeSteps with tensors: the values of NumPy's, by every way to a TimeStep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, Restart, RestartWarning, SpecError
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.testing import FaultProxy
from tests.support.serving import serving

SEED = {"seed": 3}


server = serving(Catch)


def board(timestep: Any) -> Any:
    return timestep.observation["board"]


def same(tensors: Any, arrays: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    assert isinstance(board(tensors), torch.Tensor)
    np.testing.assert_array_equal(board(tensors).numpy(), board(arrays))
    assert board(tensors).numpy().dtype == board(arrays).dtype
    np.testing.assert_array_equal(np.asarray(tensors.step_type), arrays.step_type)
    for field in ("reward", "discount"):
        own, expected = getattr(tensors, field), getattr(arrays, field)
        assert (own is None) == (expected is None)
        if own is not None:
            np.testing.assert_array_equal(np.asarray(own), expected)


def test_every_way_to_a_timestep_has_tensors(server: Server, transport: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    made = {"transport": transport, "create_world_settings": SEED}
    with (
        dm_env_rpc_client.make(server.address, arrays="torch", **made) as env,
        dm_env_rpc_client.make(server.address, **made) as plain,
    ):
        same(env.reset(), plain.reset())
        for _ in range(25):  # Across the ends of sequences.
            same(env.step({"paddle": torch.tensor(1)}), plain.step({"paddle": 1}))
        same(env.submit_step({"paddle": 0}).result(), plain.submit_step({"paddle": 0}).result())
        for own, expected in zip(
            env.rollout([{"paddle": 2}] * 15), plain.rollout([{"paddle": 2}] * 15), strict=True
        ):
            same(own, expected)
        actions = {"paddle": np.arange(40) % 3}
        same(env.unroll(actions), plain.unroll(actions))


def test_asyncio_has_tensors(server: Server) -> None:
    pytest.importorskip("torch")

    async def run(arrays: str) -> list[Any]:
        made = await dm_env_rpc_client.make_async(server.address, SEED, arrays=arrays)
        async with made as env:
            found = [await env.reset(), await env.step({"paddle": 1})]
            found += [step async for step in env.rollout([{"paddle": 2}] * 12)]
            return [*found, await env.unroll({"paddle": np.ones(30, int)})]

    for own, expected in zip(asyncio.run(run("torch")), asyncio.run(run("numpy")), strict=True):
        same(own, expected)


def test_a_step_that_is_lost_has_tensors(server: Server) -> None:
    torch: Any = pytest.importorskip("torch")
    with FaultProxy(server.address) as proxy:
        restart = Restart(backoff=0.01)
        env = dm_env_rpc_client.make(proxy.address, SEED, arrays="torch", restart=restart)
        with env, warnings.catch_warnings():
            warnings.simplefilter("ignore", RestartWarning)
            env.reset()
            before = board(env.step({"paddle": 1})).clone()
            proxy.reset()
            lost = env.step({"paddle": 1})
            assert lost.last()
            assert torch.equal(board(lost), before)
            board(lost)[:] = 7
            first = env.step({"paddle": 1})
            assert first.first()
            assert board(first).max() == 1
            assert env.unroll({"paddle": np.ones(3, int)}).step_type.tolist() == [1, 1, 1]


@pytest.mark.parametrize("num_batches", [None, 0])
def test_batches_have_tensors(server: Server, num_batches: int | None) -> None:
    torch: Any = pytest.importorskip("torch")
    seeds = [{"seed": seed} for seed in range(3)]
    with (
        BatchedEnvironment(
            server.address, 3, seeds, arrays="torch", num_batches=num_batches
        ) as envs,
        BatchedEnvironment(server.address, 3, seeds, num_batches=num_batches) as plain,
    ):
        same(envs.reset(), plain.reset())
        kept = []
        for place in range(14):
            action = np.arange(3) + place
            own = envs.step({"paddle": torch.from_numpy(action % 3)})
            # Also where the caller has not asked for tensors.
            expected = plain.step({"paddle": torch.from_numpy(action % 3)})
            same(own, expected)
            kept.append((own, board(own).clone()))
            board(own)[:] += 1  # Is the caller's.
        for own, copied in kept:
            assert torch.equal(board(own), copied + 1)
        envs.send({"paddle": torch.ones(3, dtype=torch.int64)})
        plain.send({"paddle": np.ones(3, int)})
        own, ids = envs.recv(3)
        expected, others = plain.recv(3)
        assert isinstance(board(own), torch.Tensor)
        # Rows are in the order of their arrival.
        found, wanted = board(own).numpy()[np.argsort(ids)], board(expected)[np.argsort(others)]
        np.testing.assert_array_equal(found, wanted)


def test_jax(server: Server) -> None:
    jax: Any = pytest.importorskip("jax", reason="jax is not installed")
    with (
        dm_env_rpc_client.make(server.address, SEED, arrays="jax", device="cpu") as env,
        dm_env_rpc_client.make(server.address, SEED) as plain,
    ):
        own, expected = env.reset(), plain.reset()
        assert isinstance(board(own), jax.Array)
        np.testing.assert_array_equal(np.asarray(board(own)), board(expected))
        own = env.step({"paddle": jax.numpy.asarray(1)})
        np.testing.assert_array_equal(np.asarray(board(own)), board(plain.step({"paddle": 1})))


def test_a_device_that_is_not_there(server: Server) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SpecError, match="device='cuda:77': torch cannot use this device"):
        dm_env_rpc_client.make(server.address, arrays="torch", device="cuda:77")


def test_arrays_that_are_overwritten_are_for_numpy_alone(server: Server) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SpecError, match="copy=False cannot be used with torch arrays"):
        BatchedEnvironment(server.address, 2, copy=False, arrays="torch")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with serve(Catch) as server, pytest.raises(SpecError, match="cannot import torch"):
        dm_env_rpc_client.make(server.address, arrays="torch")


def test_nothing_is_imported_unasked(server: Server) -> None:
    program = (
        "import sys, dm_env_rpc_client\n"
        f"with dm_env_rpc_client.make({server.address!r}) as env: env.reset()\n"
        "print(sorted({'torch', 'jax', 'cupy'} & set(sys.modules)))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert finished.stdout.strip() == "[]"
