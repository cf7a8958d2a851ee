"""Rollouts and servers over many processes and machines, with Ray.

Read `worker.py` first: a policy that acts in some environments. `trajectories.py` is what it
delivers, `rollouts.py` has all workers in one process, `ray_rollouts.py` each in an actor.
`ray_servers.py` starts servers. May import `environment`, `server` and what they import.

## Rollouts

`LocalRollouts` and `RayRollouts` take the same arguments and deliver the same batches. The first
needs nothing else, so begin with it:

```python
import numpy as np

import dm_env_rpc_client
from dm_env_rpc_client.distributed import LocalRollouts
from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)
address = server.address


def make_env(index):
    return dm_env_rpc_client.make(address, {"seed": index})


def policy(timestep, weights, random):
    stays = np.array([generator.random() < weights["stay"] for generator in random])
    return {"paddle": np.where(stays, 1, 2)}


with LocalRollouts(make_env, policy, 4, 4, weights={"stay": 0.5}, seed=1) as rollouts:
    batch = rollouts.collect(20)
    print(batch.timesteps.observation["board"].shape)  # (21, 16, 10, 5)
    print(batch.actions["paddle"].shape)  # (20, 16)
    rollouts.update({"stay": 0.9})
    print(rollouts.collect(20).version)  # 1
server.stop()
```

That is four actors with four environments each. With the extra `ray`, each actor is a process,
somewhere in the cluster:

```text
import ray
from dm_env_rpc_client.distributed import RayRollouts

ray.init()  # or ray.init(address="auto"), to connect to a cluster
with RayRollouts(make_env, policy, num_actors=64, envs_per_actor=16, weights=weights) as rollouts:
    while True:
        batch = rollouts.collect(20)
        weights = learn(weights, batch)
        rollouts.update(weights)
```

- `make_env` gets the index of an environment, from 0 on, and returns a `dm_env.Environment`. A
  remote one is `make` with an address that the machines of the cluster can reach, or with a server
  to launch beside the actor, such as `python:my_envs:Walker`. The steps of an actor's remote
  environments are all sent before any answer is read.
- `policy` gets the TimeSteps of its actor's environments, the weights, and a random generator for
  each environment. An object with `__call__` may have a state; each actor has a copy. Values beside
  the actions, such as log-probabilities, are returned with `PolicyStep(actions, extras)`.
- `collect(20)` waits for 20 steps of all environments, with the weights of now.
  `for batch in rollouts.stream(20)` yields batches of one actor each as they are ready. The actors
  go on meanwhile, so these batches may have earlier weights: `batch.version`.

A batch has one TimeStep more than actions, like an episode of `dm_env_rpc_client.recording`:
`actions[t]` was chosen at `timesteps[t]` and answered by `timesteps[t + 1]`, and the last TimeStep
is the first one of the next batch. After LAST comes FIRST, whose action the environment has
ignored, as everywhere in dm_env:

```text
LAST = dm_env.StepType.LAST
counts = batch.timesteps.step_type[:-1] != LAST  # [T, N]: whether an action did something
rewards = batch.timesteps.reward[1:]             # [T, N]
discounts = batch.timesteps.discount[1:]
```

## What is promised

- **The same seeds, the same trajectories**, in one process and in many, bit for bit, if policy and
  environments depend on what they are given only. How the environments are spread over actors
  does not matter either, if the policy computes each row on its own.
- **A batch is delivered once, or reported as lost.** If the process of an actor ends, if one of its
  environments fails, or if it takes longer than `batch_timeout`, its batch is lost: it is in
  `rollouts.losses`, in the count `num_lost` and in the log, and no part of it is delivered. Another
  actor takes its place, with the same indices. Its sequences begin with FIRST, and its actions are
  drawn anew (`batch.restarts`); environments that are seeded with their index begin as they did.
  Other actors go on. To keep the environments of an actor when a server is lost, use
  `make(restart=...)`.
- **Nothing is left** after `close`: it closes environments, which ends the servers that they have
  launched, and ends actors. Ray ends them with the program, too; launched servers end also if it
  does so by force.

## Servers in a cluster

`RayServers` runs N servers, spread over the machines, and has their addresses, for clients in the
cluster or outside of it:

```text
with RayServers("my_envs:Walker", num_servers=8, token=token, credentials=Tls(...)) as servers:
    envs = BatchedEnvironment(servers.addresses, num_envs=64, token=token, credentials=Tls(...))
```

## RLlib

It takes the Gymnasium id, and the arguments of `gymnasium.make` as `env_config`. With
`vector_entry_point` each env runner has a `RemoteVectorEnv`, which steps all of its environments at
once; without, they are single ones, stepped one after the other:

```text
config = (
    PPOConfig()
    .environment("dm_env_rpc_client.gymnasium:Remote-v0", env_config={"address": server.address})
    .env_runners(
        num_env_runners=2, num_envs_per_env_runner=8, gym_env_vectorize_mode="vector_entry_point"
    )
)
```
"""

from dm_env_rpc_client.distributed.ray_rollouts import Loss, RayRollouts
from dm_env_rpc_client.distributed.ray_servers import RayServers
from dm_env_rpc_client.distributed.rollouts import LocalRollouts, Rollouts
from dm_env_rpc_client.distributed.trajectories import Batch
from dm_env_rpc_client.distributed.worker import PolicyStep

__all__ = [
    "Batch",
    "LocalRollouts",
    "Loss",
    "PolicyStep",
    "RayRollouts",
    "RayServers",
    "Rollouts",
]
