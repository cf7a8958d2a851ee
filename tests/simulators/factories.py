"""Factories of simulators, which a server's process calls, and the tests, too."""

from __future__ import annotations

from typing import Any

ROWS = 4


def gymnax_cart_pole(num_envs: int = ROWS) -> Any:
    import gymnax
    from gymnax.wrappers import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    return GymnaxToVectorGymWrapper(env, num_envs, parameters)


def brax_pendulum(num_envs: int = ROWS) -> Any:
    from brax import envs
    from brax.envs.wrappers.gym import VectorGymWrapper

    pendulum = envs.create(
        "inverted_pendulum", episode_length=20, batch_size=num_envs, backend="positional"
    )
    return VectorGymWrapper(pendulum)


def _snake() -> Any:
    from jumanji.environments import Snake

    return Snake(num_rows=5, num_cols=5, time_limit=30)


def jumanji_dm_env(seed: int = 5) -> Any:
    import jax
    from jumanji.wrappers import JumanjiToDMEnvWrapper

    return JumanjiToDMEnvWrapper(_snake(), jax.random.PRNGKey(seed))


def jumanji_gymnasium(seed: int = 5) -> Any:
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(_snake(), seed)


def _waterfall(wrapper: str, num_envs: int, agents: int, **more: Any) -> Any:
    import vmas

    return vmas.make_env(
        "waterfall", num_envs, wrapper=wrapper, n_agents=agents, max_steps=20,
        terminated_truncated=True, **more,
    )  # fmt: skip


def vmas_rows(num_envs: int = ROWS) -> Any:
    return _waterfall("gymnasium_vec", num_envs, 1)


def vmas_rows_of_torch(num_envs: int = ROWS) -> Any:
    return _waterfall("gymnasium_vec", num_envs, 1, wrapper_kwargs={"return_numpy": False})


def vmas_agents(num_envs: int = ROWS) -> Any:
    return _waterfall("gymnasium_vec", num_envs, 2)


def vmas_single(seed: int = 5) -> Any:
    return _waterfall("gymnasium", 1, 1, seed=seed)
