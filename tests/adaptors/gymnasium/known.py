"""Gymnasium environments that nobody here wrote."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"
"""The id of the environment at a server."""

ENVIRONMENTS = {
    "CartPole-v1": (),
    # Gymnasium 1.3 has the fourth version.
    max(name for name in gymnasium.registry if name.startswith("Taxi-v")): (),
    "Blackjack-v1": (),
    "FrozenLake-v1": (),
    "LunarLander-v3": ("Box2D",),
    "ALE/Pong-v5": ("ale_py",),
    "MiniGrid-Empty-5x5-v0": ("minigrid",),
    "HalfCheetah-v5": ("mujoco", "imageio"),
}
"""Environments that nobody here wrote, and the packages that they are in."""


def local_environment(name: str, **settings: Any) -> gymnasium.Env[Any, Any]:
    for package in ENVIRONMENTS[name]:
        importlib.import_module(package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(name, **settings)


def cart_pole(**settings: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **settings)


def entry_point(num_envs: int = 2) -> Any:
    """CartPoles of a vector environment of their own, which takes no mask."""
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


def cart_poles(
    num_envs: int = 2, mode: str = "NEXT_STEP", vectorized: str = "sync"
) -> VectorEnv[Any, Any, Any]:
    own: dict[str, Any] = {"autoreset_mode": AutoresetMode[mode]}
    if vectorized == "async":
        # A fork of a process with threads is a warning from Python 3.12 on.
        own["context"] = "spawn"
    return gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode=vectorized, vector_kwargs=own
    )
