"""Joined connections as environments: everything that `make` returns.

Read `base_adaptor.py` first: actions to requests, answers to TimeSteps, without I/O.
`dm_env_adaptor.py` and `async_dm_env_adaptor.py` send and receive; `worlds.py` and
`async_worlds.py` create and join worlds; `forgotten.py` is for environments that nobody closed;
`batched.py` stacks several environments. `sites.py` says where a server is and launches it,
`incoming.py` takes those that dial in, and `restarting.py` says what becomes of an environment that
is lost. May import `launch`, `client`,
`protocol`, `tensors` and what they import.

## One environment

`dm_env_rpc_client.make` connects, creates a world and joins it; closing the environment undoes all
three. An environment that is not closed is closed when it is garbage-collected or the interpreter
exits, also after Ctrl-C. Settings are nested or flat, and their values anything that fits a tensor:

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)

env = dm_env_rpc_client.make(
    server.address,
    create_world_settings={"rows": 8, "seed": 1},
    requested_observations=["board", "rew*"],  # names or patterns; default: all of them
    request_timeout=30.0,  # seconds that each answer may take; default: no limit
)
print(env.action_spec())  # {'paddle': DiscreteArray(shape=(), dtype=int32, ...)}
print(env.observation_spec())
timestep = env.reset()
timestep = env.step({"paddle": 1})
env.close()
```

Names with periods, such as `arm.torque`, become nested dictionaries and back;
`nested_tensors=False` keeps them flat. An action may leave names out: what the environment does
then is up to it. The observations named `reward` and `discount` become the fields of the TimeStep.
Without them the reward is 0.0 and the discount 1.0, or 0.0 at the end of a sequence that
TERMINATED. A FIRST TimeStep has neither, even if the server sends them. Arrays in a TimeStep belong
to the caller: they are writable, and no later step changes them.

Actions and observations are dictionaries, also where the environment at the server has a single
array. With `unwrap_single=True` they are an array then, as wrappers and agents that were written
for it expect; in a batch, too.

For a reward or a discount of your own, override `DmEnvAdaptor.reward` and `DmEnvAdaptor.discount`,
and pass the class:

```python
class Scaled(dm_env_rpc_client.DmEnvAdaptor):
    def reward(self, state, step_type, observations):
        reward = super().reward(state, step_type, observations)
        return None if reward is None else 0.01 * reward


with dm_env_rpc_client.make(server.address, adaptor_class=Scaled) as env:
    timestep = env.reset()
    while not timestep.last():
        timestep = env.step({"paddle": 1})
    print(abs(float(timestep.reward)))  # 0.01
```

`env.reset(settings)` sends settings for the next sequence. They may change the specs, which the
adaptor then adopts. A server may know only Join, Leave and Step: if it refuses Reset in the middle
of a sequence, the adaptor leaves the world and joins it again.

## Worlds that several connections share

The parts of `make` are functions of their own, for worlds that live longer than one connection or
that several agents join:

```python
with dm_env_rpc_client.connect(server.address) as connection:
    world = dm_env_rpc_client.create_world(connection, {"rows": 6})
    with dm_env_rpc_client.join_world(connection, world) as env:
        env.reset()
        print(env.observation_spec()["board"].shape)  # (6, 5)
    dm_env_rpc_client.reset_world(connection, world)
    dm_env_rpc_client.destroy_world(connection, world)
```

## Steps ahead of their answers

If actions do not depend on observations, as with a random or a recorded policy, a step does not
have to wait for the answer to the last one. `unroll` sends a whole sequence of actions and stacks
the TimeSteps along time, across the ends of sequences; `submit_step` returns a future for each
step:

```python
import itertools

import numpy as np

with dm_env_rpc_client.make(server.address) as env:
    trajectory = env.unroll({"paddle": np.random.randint(3, size=200)})
    print(trajectory.observation["board"].shape)  # (200, 10, 5)

    futures = [env.submit_step({"paddle": 1}) for _ in range(10)]
    timesteps = [future.result() for future in futures]

    # An iterable of actions, which may be endless, and a TimeStep for each.
    actions = ({"paddle": np.random.randint(3)} for _ in itertools.count())
    rewards = [step.reward or 0.0 for step in itertools.islice(env.rollout(actions), 500)]
    print(len(rewards))  # 500
```

The number and total size of pending requests are limited, so that neither end waits for the other
with full buffers.

## Many environments

`dm_env_rpc_client.BatchedEnvironment` steps many environments in one thread, on one server or on
several. It sends all steps before it reads any answer, and stacks the TimeSteps:

```python
with dm_env_rpc_client.BatchedEnvironment(
    [server.address], 16, lambda index: {"seed": index}
) as envs:
    envs.reset()
    timestep = envs.step({"paddle": np.ones(16, int)})
    print(timestep.reward.shape, timestep.last().any())  # (16,) False
```

It takes one address or a list, over which the environments are spread, and settings for all
environments, a list with settings for each, or a function of the index. `step` waits for all of
them; `send` and `recv` return those that have answered, so that a slow one does not stop the
others. Servers may also connect to the program, see `dm_env_rpc_client.environment.incoming`. Over
the transport http2 the environments of one address share a socket, as far as the
server allows: one system call sends all steps. If some environments fail, the answers of all others
are read, and `EnvironmentsFailedError` says which failed and why. For Gymnasium's vector interface
see `dm_env_rpc_client.adaptors`.

## asyncio

`make_async` returns an `AsyncDmEnvAdaptor`, whose `reset`, `step`, `unroll` and `close` are
awaited:

```python
import asyncio


async def main():
    async with await dm_env_rpc_client.make_async(server.address) as env:
        await env.reset()
        timestep = await env.step({"paddle": 1})
        print(timestep.step_type.name)  # MID


asyncio.run(main())
server.stop()
```
"""
