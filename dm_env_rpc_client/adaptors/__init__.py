"""Remote environments behind the interfaces of other libraries.

One file or folder and one extra for each library, named after it. Read `gymnasium.py` first. May
import `bridges`, `environment`, `extensions` and what they import.

## A Gymnasium environment, there and back

With the extra `gymnasium`. A factory of Gymnasium environments is served like any other, and the id
`Remote-v0` makes the environment at the other end. It names the module that registers it, which
Gymnasium imports:

```python
import gymnasium

from dm_env_rpc_client.server import serve


def lake(**settings):
    return gymnasium.make("FrozenLake-v1", **settings)


with serve(lake) as server:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0",
        address=server.address,
        create_world_settings={"is_slippery": False, "max_episode_steps": 20},
    )
    observation, info = env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(1)
    print(env.observation_space, observation, reward, info)  # Discrete(16) 4 0.0 {'prob': 1.0}
    print(env.spec.max_episode_steps)  # 20
    env.close()
```

From a shell the first half is `dm-env-rpc serve gymnasium://FrozenLake-v1`.

A program sees no difference to the environment itself:

- `observation_space` and `action_space` equal its own. A space that is not of Gymnasium becomes the
  nearest that is, such as a Text for one of strings; `env.unwrapped.notes` lists these.
- `reset(seed=..., options=...)` goes to its own `reset`. The same seeds give the same episodes.
- Infos arrive with each step and reset: numbers, texts, lists, tuples, dictionaries and arrays as
  they are, anything else as its `repr`. `terminated` and `truncated` are its own, also if both are
  true.
- `render()` returns its picture, text or list. The server makes it anew for the `render_mode` of
  `gymnasium.make`. A mode that the server does not have, or `human`, is a warning, and `render()`
  returns None.
- `metadata`, `spec.max_episode_steps` and, if it has one, `reward_range` are its own.

What differs: elements of a Discrete are `int`, where some environments have NumPy's integers;
rewards are `float`; a step after the end of an episode raises `ResetNeeded`; actions out of bounds
are refused, as everywhere in this package; and other attributes of the environment, such as its
random generator, stay at the server.

A client without Gymnasium sees an environment of dm_env whose specs are those of
`bridges.gymnasium_elements`; `env.reset({"seed": 1, "options": {"low": -0.1}})` works there, too.
`requested_observations` gives a Gymnasium client the same view.

What travels, for authors of other clients and servers:

| what | how |
| --- | --- |
| spaces, metadata, time limit | the property `gymnasium`, JSON; read once, after joining |
| seed, options | settings of a Reset: `seed` an integer, `options` JSON text or settings |
| infos | the Reset setting `infos`, true: from then on the specs have the observation `gymnasium` |
| | beside `observation`. It is text, empty or JSON: `info`, and `truncated` if both are true |
| render mode | the Reset setting `render_mode`, like any setting of the factory |
| frames | the property `gymnasium.frame`, an array or JSON; `render` reads it |

The JSON of values is that of `bridges.gymnasium_values`, the JSON of spaces that of
`bridges.gymnasium_space_json`. Infos take no request of their own, and clients that do not ask for
them neither see nor pay for them.

## Any remote environment as a Gymnasium environment

Of other environments the spaces are those of the specs:

```python
from dm_env_rpc_client.server import Catch

server = serve(Catch)

env = gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=server.address)
observation, info = env.reset(seed=1)
observation, reward, terminated, truncated, info = env.step(1)
print(env.action_space, info)  # Discrete(3) {'discount': 1.0}
env.close()
```

A structure of a single array goes without the mapping around it (`unwrap_single=False` keeps it).
Seeds are sent as the setting `seed` (`seed_setting=None` keeps them from the server). `info` has
the discount. `adaptors.gymnasium.GymnasiumEnv(env)` does the same for any `dm_env.Environment`, and
`adaptors.gymnasium.GymnasiumEnvironment(env)` is a Gymnasium environment as a `dm_env.Environment`.

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

## Wrappers for dm_env

`adaptors.wrappers` has what dm_env lacks and programs write again and again. Each is a
`dm_env.Environment` around another, remote or not, or around a `BatchedEnvironment`; specs change
with what they describe. They need no extra:

```python
import numpy as np
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client.adaptors import wrappers


class Arm(Catch):
    def action_spec(self):
        return {"paddle": specs.BoundedArray((), np.float64, 0.0, 2.0)}


server = serve(Arm)
env = dm_env_rpc_client.make(server.address)
env = wrappers.ActionScale(env)  # actions from -1 to 1
env = wrappers.ActionRepeat(env, 3)  # each three times
env = wrappers.FloatCast(env)  # float64 becomes float32
env = wrappers.ObservationStack(env, 4)  # the last four observations
timestep = env.reset()
timestep = env.step({"paddle": np.float32(0.5)})
print(timestep.observation["board"].shape, timestep.reward.dtype)  # (10, 5, 4) float32
env.close()
server.stop()
```

| wrapper | what it does |
| --- | --- |
| `ActionScale` | bounds become those of the environment, exactly; integers stay as they are |
| `ActionRepeat` | sums rewards, each times the discounts before it; multiplies discounts; |
| | stops at LAST; in a batch, for each environment on its own |
| `FloatCast` | observations, reward, discount and actions; integers stay as they are |
| `ObservationStack` | a new last axis; `names` selects; the first observation fills it at first |

Parts of actions, flat names and `unwrap_single=True` work as without them. `env.environment` is
what a wrapper is around. The outermost is applied to actions first and to TimeSteps last.

## Stable-Baselines3

With the extra `sb3`, `adaptors.sb3.RemoteSb3VecEnv` is the same batch as a VecEnv:

```text
from stable_baselines3 import PPO

from dm_env_rpc_client.adaptors.sb3 import RemoteSb3VecEnv

envs = RemoteSb3VecEnv("localhost:50051", 8)
PPO("MlpPolicy", envs).learn(100_000)
```

Its own `make_vec_env` takes the id, and the address in `env_kwargs`, and steps the environments one
after the other.

## PettingZoo, there and back

With the extra `pettingzoo`. A factory of PettingZoo environments is served as a world for several
agents, and `RemoteParallelEnv` is the `ParallelEnv` at the other end:

```python
import pettingzoo

from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv


def rock_paper_scissors(**settings):
    return pettingzoo.make("parallel", "classic/rps_v2", **settings)


games = serve(rock_paper_scissors)

env = RemoteParallelEnv(games.address, create_world_settings={"max_cycles": 30})
observations, infos = env.reset(seed=1)
while env.agents:
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
print(env.possible_agents, env.agents)  # ['player_0', 'player_1'] []
print(truncations)  # {'player_0': True, 'player_1': True}
env.close()
```

From a shell the first half is `dm-env-rpc serve pettingzoo://classic/rps_v2`. A program sees no
difference to the environment itself: agents, spaces, observations, rewards, flags, infos, metadata,
frames and `state()` are its own, and `reset(seed=..., options=...)` goes to its own `reset`. Agents
may be out before the others, or begin later. What differs is as with Gymnasium, and `agents` is in
the order of `possible_agents`, which an environment must have. An `AECEnv` is served through
PettingZoo's `aec_to_parallel`; one that is not parallelizable, such as chess, through
`turn_based_aec_to_parallel`, in which all agents step and one of them acts.

Each agent is a stream of one connection. All their steps are sent before any answer is read. If one
agent fails, `AgentsFailedError` says which and why; all streams are ended, and the world is
destroyed. With `restart=Restart()`, a step in which the server or a stream is lost is truncated for
all agents instead, with `{"restarted": True}` as their infos, and `reset` begins the world again.
An error of the environment is a `DmEnvRpcError`, and the next `reset` works.

Each agent may have a client of its own, which need not know PettingZoo. It joins with the setting
`agent`, or takes the first agent that is free:

```python
import dm_env_rpc_client

with dm_env_rpc_client.connect(games.address) as owner, owner.reopen() as connection:
    world = dm_env_rpc_client.create_world(owner, {})
    mine = RemoteParallelEnv(games.address, ["player_1"], world_name=world)
    other = dm_env_rpc_client.join_world(connection, world, {"agent": "player_0"})
    print(other.action_spec())  # {'action': DiscreteArray(shape=(), dtype=int64, ...)}
    future = other.step_async({})  # A step waits for those of all players.
    mine.reset()
    future.result()
    future = other.step_async({"action": 1})
    print(mine.step({"player_1": 2})[1], future.result().reward)  # {'player_1': 1.0} -1.0
    mine.close()
    other.close()
    dm_env_rpc_client.destroy_world(owner, world)
games.stop()
```

An agent that is out receives a LAST TimeStep, terminated or truncated, and its next step waits for
the next episode. If an agent resets its own sequence, leaves or is disconnected, the episode ends,
truncated, for all, unless it was out.

Of any other world with several agents, `RemoteParallelEnv` needs their names, or a mapping from
names to the settings with which each joins, such as `{"left": {"lane": 0}, "right": {"lane": 1}}`.
The spaces are those of the specs then.

What travels beside what does for Gymnasium:

| what | how |
| --- | --- |
| agents, their spaces, metadata | the property `pettingzoo`, JSON; for clients that have joined |
| seed, options | settings of a ResetWorld |
| agent | the setting `agent` of a JoinWorld, a name |
| infos | the setting `infos` of a JoinWorld, true: the specs then have the observation |
| | `pettingzoo` beside `observation`. It is text, empty or JSON: `info`; `truncated`, if the |
| | agent was terminated, too; `agents`, the names of all that take part now, if not only those |
| | that did before; `common`, infos that belong to no agent |
| frames, state | the properties `pettingzoo.frame` and `pettingzoo.state` |

## TorchRL

Its `GymWrapper`, `GymEnv`, `PettingZooWrapper` and collectors take these environments as they are:

```text
from torchrl.envs import GymEnv, PettingZooWrapper

env = GymEnv("dm_env_rpc_client.gymnasium:Remote-v0", address="localhost:50051")
env = PettingZooWrapper(RemoteParallelEnv("localhost:50051"))
```
"""
