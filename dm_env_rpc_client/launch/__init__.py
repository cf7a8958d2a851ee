"""Servers that are started for a program and end with it: processes and containers.

Read `launched.py` first: a server that was started. `processes.py` and `containers.py` start them,
`ports.py` chooses free ports, `container.py` is the process that a container belongs to, and
`specs.py` reads `process:...`, `docker:...` and `python:...`. May import `client`, `runtime` and
`errors`.

## In one line

Whatever takes the address of a server takes one to start in its place: `make`, `make_async`,
`BatchedEnvironment`, `gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=...)`,
`RemoteVectorEnv`, `RemoteParallelEnv` and every command of `dm-env-rpc`. The server ends with the
environment: with its `close`, if it is forgotten, when the interpreter exits, and also if the
program is killed.

```python
import dm_env_rpc_client

with dm_env_rpc_client.make("python:dm_env_rpc_client.server:Catch", {"rows": 6}) as env:
    print(env.reset().step_type.name)  # FIRST
```

- `python:MODULE:NAME` serves a class, or another callable that makes a `dm_env.Environment`, a
  Gymnasium environment or a game, in a Python process of its own. Create settings are its
  arguments. The process finds the modules that this one finds, except `__main__`.
- `process:COMMAND` starts a command, in any language, that is told where to listen:
  `process:./engine --port={port}`. `{port}` becomes a free port of the loopback interface,
  `{socket}` the path of a unix socket in a folder that only this user can open.
- `docker:IMAGE` starts a container, after pulling the image if it is not there, and maps the port
  that the image exposes to a free one of the loopback interface: `docker:owner/image:1.2`. What
  follows the image are arguments for its entry point. Needs the extra `docker`.

Of a batch of environments at one such address all are on one server. In a list, each entry is a
server of its own:

```python
import numpy as np

catch = "python:dm_env_rpc_client.server:Catch"
with dm_env_rpc_client.BatchedEnvironment([catch] * 2, num_envs=4) as envs:
    envs.reset()
    print(envs.step({"paddle": np.ones(4, int)}).reward.shape)  # (4,)
```

## With more options

`from_process`, `from_docker` and `from_python` take the environment's variables, the folder, a
timeout and more. They return a `Launch`: a context manager with the address for any client, and the
end of what the server has printed:

```python
import sys

from dm_env_rpc_client.launch import from_process

command = [sys.executable, "-m", "dm_env_rpc_client.server", "dm_env_rpc_client.server:Catch"]
with from_process([*command, "localhost:{port}"], env={"SEED": "1"}, timeout=60.0) as server:
    with dm_env_rpc_client.make(server.address) as env:
        env.reset()
    print(server.logs())  # serving dm_env_rpc_client.server:Catch at localhost:...
```

They return when the server answers a request. A port that accepts connections is not enough. If the
server ends before, or takes too long, the `LaunchError` has the command, the exit code and the last
lines of the log. `make` takes a function that returns a `Launch`, too, so that the options hold
when it is started again: `make(lambda: from_process([...], cwd="engine"))`.

With `{socket}` there is no port that another program could take. With `{port}`, this process gives
no port away twice, and holds it until the server listens, so that no program that asks for any free
port gets it. If another program takes this very port by its number, the server is started again
with another one. Where `/proc` tells whose socket it is, as on Linux, answers of another program
are never taken for those of the server.

Processes get SIGTERM, and SIGKILL 5 s later, together with what they have started, except for what
has left their process group. A supervisor process sees to it when this process is gone, and a guard
process when the supervisor is killed; if both are killed at once, the server stays. A container
belongs to two such processes as well, which remove it.

What a server prints goes to a file without a name, whose disk space is freed but for the last MiB
(on Linux).

## Long training

With `restart` a server that dies, freezes (see `request_timeout`) or loses its connection does not
end the training. The environment is launched again, or connected to again if it was not launched
here, created and joined again, with the settings of `make`:

```python
import logging

logging.getLogger("dm_env_rpc_client").setLevel(logging.ERROR)  # It warns of each loss.

restart = dm_env_rpc_client.Restart(attempts=5, backoff=0.5)
servers = []


def launch():
    servers.append(from_process([*command, "unix:{socket}"]))
    return servers[-1]


with dm_env_rpc_client.make(launch, restart=restart) as env:
    env.reset()
    env.step({"paddle": 1})
    servers[0].close()  # as if it had died
    lost = env.step({"paddle": 1})
    print(lost.step_type.name, lost.discount)  # LAST 1.0
    print(env.step({"paddle": 1}).step_type.name, env.restarts)  # FIRST 1
```

- The lost step is not repeated: nobody knows whether the server took it. Its TimeStep is LAST, as
  after INTERRUPTED, with reward 0, discount 1 and a copy of the last observation that was returned.
  `env.interruption` is the error, until the next TimeStep. The next call starts the environment
  again, and its first TimeStep is FIRST.
- In Gymnasium that step is truncated, with `info["restarted"]`; in a vector that is an array. In
  PettingZoo it is truncated for all agents, and `reset` begins the world again.
- A reset during which the server is lost is done on the new one. So is a step that was to begin a
  sequence. Of steps sent ahead of their answers (`rollout`, `unroll`), the first that is lost is
  LAST, and those after it are taken in the next sequence. A future of `submit_step` fails, and the
  next step is LAST.
- A warning is logged for each loss, and `env.restarts` counts the restarts.
- `attempts` bounds how many may fail in succession. An answered step that is not FIRST resets the
  count, so a server that ends again at once uses them up. Then the last error is raised, with the
  others as its causes. Before all attempts but the first there is a pause, which doubles.
- Specs have to be the same afterwards; a SpecError says what changed. Settings of a `reset` are not
  sent again.
- Of several environments on one launched server, the first that is lost starts it again if it does
  not answer, and the others follow. In a batch, those that are lost together start together.
"""

from dm_env_rpc_client.launch.containers import from_docker
from dm_env_rpc_client.launch.launched import LOG_BYTES, Launch
from dm_env_rpc_client.launch.processes import from_process, from_python

__all__ = ["LOG_BYTES", "Launch", "from_docker", "from_process", "from_python"]
