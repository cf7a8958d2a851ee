"""Remote environments behind the interfaces of other libraries.

One file or folder and one extra for each library, named after it. Read `gymnasium.py` first. May
import `environment` and what it imports.

## A remote environment as a Gymnasium environment

With the extra `gymnasium`. The id names the module that registers it, which Gymnasium imports:

```python
import gymnasium

from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)

env = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=server.address)
observation, info = env.reset(seed=1)
observation, reward, terminated, truncated, info = env.step(1)
print(env.action_space, info)  # Discrete(3) {'discount': 1.0}
env.close()
```

A structure of a single array goes without the mapping around it (`unwrap_single=False` keeps it).
Seeds are sent as the setting `seed` (`seed_setting=None` keeps them from the server). `info` has
the discount. `adaptors.gymnasium.GymnasiumEnv(env)` does the same for any `dm_env.Environment`.

## A Gymnasium environment as a dm_env.Environment

`adaptors.gymnasium.GymnasiumEnvironment` is the other direction, and what to serve:

```python
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment


def cart_pole(**settings):
    return GymnasiumEnvironment(gymnasium.make("CartPole-v1", **settings))


with serve(cart_pole) as own:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0",
        address=own.address,
        create_world_settings={"max_episode_steps": 20},
    )
    env.reset()
    print(env.step(0)[1])  # 1.0
    env.close()
```

From a shell that is `dm-env-rpc serve gymnasium://CartPole-v1`.

## Many environments

`gymnasium.make_vec` with the same id, or `adaptors.vector.RemoteVectorEnv`, steps many environments
from one thread: it sends all steps before it reads any answer. `step` waits for all of them; `send`
and `recv` return those that have answered:

```python
envs = gymnasium.make_vec(
    "dm_env_rpc_client.gymnasium:Remote-v0", num_envs=16, address=server.address
)
envs.reset(seed=1)
observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
print(observations.shape)  # (16, 10, 5)

envs.send(envs.action_space.sample())
*results, env_ids = envs.recv(8)  # of the 8 or more that answered first
envs.close()
server.stop()
```

An environment is reset on the step after the end of its episode; `autoreset_mode="SameStep"` and
`"Disabled"` are the other modes. It takes one address or several, and settings for all
environments, a list with settings for each, or a function of the index. If some environments fail,
the answers of all others are read, and `EnvironmentsFailedError` says which failed and why.
`BatchedEnvironment` is the same for dm_env; see `dm_env_rpc_client.environment`.
"""
