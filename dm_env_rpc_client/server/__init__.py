"""Serving environments to dm_env_rpc clients; see `serve`.

Read `world.py` first: the interface of what is served. `session.py` answers the requests of one
stream, `hosting.py` puts worlds behind a listener, `processes/` puts them into other processes,
`games/` holds the example environments. May import `protocol`, `tensors`, `transports`, `displays`,
`runtime`, `errors` and, of `bridges`, the one to Gymnasium, but not `client`.

## An environment

Any `dm_env.Environment` can be served. The keyword arguments of what makes it are the settings that
clients create worlds with:

```python
import dm_env
import numpy as np
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client.server import serve


class Countdown(dm_env.Environment):
    def __init__(self, start: int = 3):
        if start < 1:
            raise ValueError(f"start is {start}, and must be at least 1")
        self._start = start

    def action_spec(self):
        return {"subtract": specs.BoundedArray((), np.int32, 1, 2)}

    def observation_spec(self):
        return {"counter": {"value": specs.Array((), np.int64)}}

    def reset(self):
        self._value = self._start
        return dm_env.restart({"counter": {"value": self._value}})

    def step(self, action):
        self._value -= int(action["subtract"])
        observation = {"counter": {"value": self._value}}
        if self._value <= 0:
            return dm_env.termination(1.0, observation)
        return dm_env.transition(0.0, observation)


with serve(Countdown) as server, dm_env_rpc_client.make(server.address, {"start": 5}) as env:
    env.reset()
    print(env.step({"subtract": 2}).observation["counter"]["value"])  # 3
```

From a shell that is `dm-env-rpc serve my_module:Countdown --address localhost:50051`. Several kinds
of environments behind one address are a dictionary, from which the setting `environment` picks one:
`serve({"down": Countdown, "catch": Catch})`.

Each world has an environment of its own, for one agent at a time. The end of an episode with
discount 0 is TERMINATED, any other INTERRUPTED. A `ValueError` or `TypeError` of the constructor
refuses the settings. Any other exception reaches the client with its traceback, as an INTERNAL
error, and is in `Server.errors`.

A world stays until it is destroyed. When a client disconnects, its agent leaves. The worlds that it
created are destroyed a minute later, or a minute after their last agent has left, unless somebody
joins them in time. `serve(..., idle_world_seconds=None)` keeps them. The only world of a `Game` or
`World` that is given to `serve` always stays.

A Gymnasium environment can be served, too: `serve(lambda: gymnasium.make("CartPole-v1"))`, and so
can one of PettingZoo; see `dm_env_rpc_client.adaptors`. A vector of them cannot: each client makes
as many as it wants.

A step has to have all actions. An environment or a `Game` that takes fewer has an attribute
`default_actions`, values by flat name for those that are left out; `serve(default_actions=...)`
adds to them.

The settings of a Reset override those of the creation, and make a new environment. An environment
that takes some of them itself has their names as `reset_settings` and a method `configure` that
gets them by name; it raises a `ValueError` to refuse them.

## Several agents in one world

Write a `Game`. It says what each player sees and does. The server waits until all players have
stepped, tells them of resets, and goes on without those who leave, or for whom the sequence has
ended: those whose TimeStep was LAST. `Race` is an example:

```python
import threading

from dm_env_rpc_client.server import Race

with serve(Race) as server, dm_env_rpc_client.connect(server.address) as owner:
    world = dm_env_rpc_client.create_world(owner, {})
    connections = [dm_env_rpc_client.connect(server.address) for _ in range(2)]
    envs = [dm_env_rpc_client.join_world(connection, world) for connection in connections]
    threads = [threading.Thread(target=env.reset) for env in envs]  # each waits for the other
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(server.agent_count)  # 2
    for env, connection in zip(envs, connections):
        env.close()
        connection.close()
    dm_env_rpc_client.destroy_world(owner, world)
```

While a player waits, the property `waiting_for.NAME`, NAME being that of the world, says for whom.
Any connection may read it, joined or not.

From a shell that is `dm-env-rpc serve race`. If neither fits, implement `World` and `Agent`
themselves.

## Several processes

Environments that compute in Python do so one at a time in each process. With `processes` the worlds
live in so many worker processes:

```text
from my_envs import Walker

if __name__ == "__main__":  # As for every program that starts processes.
    with serve(Walker, "localhost:50051", processes=4) as server:
        server.wait()
```

From a shell that is `dm-env-rpc serve my_envs:Walker --processes 4`. `BatchedEnvironment`,
`RemoteVectorEnv` and clients with connections of their own use all processes. Each connection is
given to the process with the fewest worlds, and its worlds are there, unless other processes have
fewer. A world can be joined from any connection: its requests are forwarded if they have to be, at
the cost of another hop.

- What is served is imported by each process: a function or class of a module, `functools.partial`
  of one, or the text "module:factory". A lambda, an object that exists already, and what was
  defined in a notebook are refused when the server starts. Write the latter to a file and import
  it.
- Handlers of `extensions` and `default_actions` are given to each process, too. `properties` stay
  in the process that serves.
- All limits, `stats()`, `errors` and the log count all processes together.
- A process that ends, by a segmentation fault or by a signal, takes its worlds with it: their
  clients get a `ConnectionLostError`. It is in `Server.errors`, another takes its place, and
  clients of other processes go on. All end with the process that serves.
- A process that SIGSTOP has stopped gets no more connections and worlds; if that lasts for 10 s, it
  is killed and replaced. One that computes is left alone, however long it takes; while it does not
  even take connections, others get them.
- With a process for each processor, environments of one process that compute for some milliseconds
  are stepped by one thread; those that wait in their steps have a thread each, as without
  processes.
- The transport is http2, on Linux, and credentials are a `Tls`.

`python -m tests.benchmarks --only served-computing` in the repository compares one and two
processes with Gymnasium's AsyncVectorEnv.

## Who may connect

A server listens on loopback in plaintext, and on other addresses with TLS, or with `insecure=True`.
`Tls` names the PEM files of one end. A server needs `cert` and `key`; with `ca` it takes only
clients that have a certificate of that authority:

```text
serve(Countdown, "0.0.0.0:50051", credentials=Tls(cert="server.crt", key="server.key", ca="ca.crt"))
make("env.host:50051", credentials=Tls(ca="ca.crt", cert="client.crt", key="client.key"))
```

The files are read when a server starts and when a client connects. To change a server's
certificate, replace the files and start the server again; `connection.reopen()` of a client reads
its own files again.

A token is a secret that all clients share. A stream without it ends at once with UNAUTHENTICATED,
before a request is read:

```python
from dm_env_rpc_client.server import Catch

with serve(Catch, token="s3cret") as server:
    with dm_env_rpc_client.make(server.address, token="s3cret") as env:
        print(env.reset().step_type.name)  # FIRST
    try:
        dm_env_rpc_client.make(server.address)
    except dm_env_rpc_client.ConnectionLostError as error:
        print("UNAUTHENTICATED" in str(error))  # True
```

Clients in other languages send it as the metadata `authorization: Bearer s3cret`. From a shell:

```sh
dm-env-rpc serve my_module:Countdown --tls-cert server.crt --tls-key server.key --token-file token
```

Texts of this package (errors, logs, `repr`) show neither tokens nor keys nor the values of
metadata.

## What a server does

While a client steps quickly, the server keeps a processor busy between two steps, see
`dm_env_rpc_client.transports`.

`Server.stats()` counts it, and costs the steps next to nothing:

```python
with serve(Catch) as server, dm_env_rpc_client.make(server.address) as env:
    env.reset()
    env.step({"paddle": 1})
    stats = server.stats()
    print(stats.streams, stats.worlds, stats.agents, stats.steps)  # 1 1 1 2
    print(stats.requests["create_world"], stats.refusals, stats.errors)  # 1 0 0
```

`Server.errors` has the last exceptions of the environments. The logger `dm_env_rpc_client.server`
tells of them at ERROR, of refused requests and of worlds that nobody used any more at INFO, and of
other requests at DEBUG; `dm_env_rpc_client.server.clients` tells at INFO who comes and goes. A step
that succeeds is never logged, and repeated lines are limited. From a shell, `dm-env-rpc serve`
shows all of this on a terminal, and logs it elsewhere:

```sh
dm-env-rpc serve my_module:Countdown --json 2> log.jsonl
```

## More

A server that connects to the program that trains, instead of listening: `serve(dial=ADDRESS)`, see
`dm_env_rpc_client.environment.incoming`. Containers, Kubernetes, certificates and health checks:
see `dm_env_rpc_client.server.deployment`.
Metrics and traces for OpenTelemetry: see `dm_env_rpc_client.adaptors.opentelemetry`.

Properties are data beside actions and observations: see `dm_env_rpc_client.extensions`. To check
that a server follows the protocol, see `dm_env_rpc_client.compliance`.
"""

from dm_env_rpc_client.server.activity import ServerStats
from dm_env_rpc_client.server.game import Game
from dm_env_rpc_client.server.games.catch import Catch
from dm_env_rpc_client.server.games.race import Race
from dm_env_rpc_client.server.hosting import Server, serve
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.world import Agent, World
from dm_env_rpc_client.transports.tls import Tls

__all__ = [
    "Agent",
    "Catch",
    "Game",
    "Properties",
    "Race",
    "RequestError",
    "Server",
    "ServerStats",
    "Tls",
    "World",
    "serve",
]
