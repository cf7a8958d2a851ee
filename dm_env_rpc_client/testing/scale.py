"""How many environments: measured on one machine, calculated for others. This module has no code.

`scale.md` and `scale.svg` are written by `python -m tests.scale`; it may import nothing.

## In short

- One client process steps as many environments as its processor allows, whatever they compute and
  wherever they are: `1 / (check + send + read)` steps per second, below. Environments that answer
  late need to be many to reach that.
- A server process has one core: `1 / (serve + the time that a step computes)` steps per second.
  `serve(..., processes=N)` takes N cores.
- So what saturates first is the client's process for cheap environments, the cores of the servers
  for those that compute, and a network card for large observations. Memory comes last.
- A processor that is in use is not always full: both ends look for input for a moment before they
  sleep (`dm_env_rpc_client.transports`). The seconds below are without that.
- More client processes, each with environments of its own, go beyond one; over several machines
  those are actors of Ray.

## 1,000 environments in one process

The environments of one address share a socket, so 1,000 take one descriptor at each end, and no
thread. A server of this package has to allow them:

```python
import numpy as np

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.server import Catch, serve

with serve(Catch, max_connections=1024) as server:  # the default is 256
    with BatchedEnvironment(server.address, 300, timeout=60.0) as envs:
        envs.reset()
        print(envs.step({"paddle": np.ones(300, int)}).reward.shape)  # (300,)
```

- `max_connections` counts streams, which are environments here, and `dm-env-rpc serve
  --max-connections` is the same. Beyond it, the server refuses with RESOURCE_EXHAUSTED and says its
  limit. `max_worlds` is 1,024 by default; it has to be more for more.
- A connection takes at most 4,096 streams; the client opens another one for more.
- Over the transport `grpc` there is a socket and a thread for each environment, and to
  `serve(..., processes=N)` a socket for each process. `ulimit -n` has to allow them.
- Environments whose steps take more than a millisecond have a thread each in the server's process.
- `step` allocates the arrays that it returns. With `copy=False` it returns the same arrays again,
  which saves time if they are of many megabytes.
- `step` waits for the slowest of all environments; `send` and `recv` do not.

## How it is calculated

What a step costs is measured by itself, with 16 and with 512 environments (fewer of large
observations): what one environment adds is `check`, `send`, `read`, `swap`, and the rest is `call`
and `turn`. All are seconds of a processor:

- `check`: to check and encode an action; `send`: to write the Step; `read`: to receive and decode
  the answer, and to put it into the batch. `call` is for a call of `step`, whatever the number of
  environments.
- `swap` is for an environment that `recv` returned and `send` stepped again, `turn` for the two
  calls.
- `fresh` is for each byte of new memory. Arrays of more than 32 MiB are in memory that the system
  gives anew in each `step`, unless `copy=False`; it is added to `swap` then. The answers to a
  `step` of so many are in new memory as well, since they come faster than they are read: `piled`,
  for all of that, is added to `read`.
- `serve` is for a step in the server's process, without what the environment computes; `fake` is
  the same of the fake servers, which answer recorded bytes after a given time.

N environments that answer after `latency` take for a `step`, which waits for all of them:

```text
seconds = call + N * check + max(N * send, 2 * send + latency) + N * read
steps per second = N / seconds
```

All actions are checked first. The Steps leave in batches of 2, 8, 32, 128 and so on, so that the
servers work while the client still sends, and answers are read when all Steps have been sent. The
calculation follows the Steps one by one, so it also has servers that are slower than the client:
each process answers one Step after another, in `serve` and the time that the environment computes.

With `send` and `recv`, which wait for any environment, a turn takes those that have answered, and
steps them again. It takes as long as they are many, and an answer is taken with the next turn that
begins after it has come. The calculation follows the turns one by one, from a `send` to all:

```text
k environments have answered   if none has, the client waits for the first
seconds = turn + k * swap
```

So with enough environments it is `1 / swap` steps per second, and with few `N / latency`.

A machine has `cores / (check + send + read + serve + work)` steps per second if there are enough
client processes, and a network card its bytes per second over those of an answer (1,538 bytes on
Ethernet carry 1,448).

Left out: what the agent computes, which takes time of the client's process; the latency of a
network; Ray's own work, and its object store; that cores share caches, memory and clock; TLS.

![Steps per second by the number of environments: lines are calculated, markers measured](scale.svg)

## Run it again

From a clone, on a machine that does nothing else:

```sh
python -m tests.scale                # prints the tables; takes some ten minutes
python -m tests.scale --quick
python -m tests.scale --json run.json --markdown run.md --plot run.svg
```

The command ends with 1 if 1,000 environments are more than 15 % beside the calculation. What counts
are the turns in which other programs took least. Processors are not always equally fast either: a
virtual one is often half of a core, and a step takes up to 1.75 times as long while a neighbour has
the other half. So a step of 256 environments is timed before and after each turn, and the
calculation takes the costs times that. The plot has all at the speed at which the costs were
measured.

## The last run

The machine had two virtual processors, and ran nothing else; its neighbours did. So rates of
different rows are not those of one speed, and each is to be compared with the calculation beside
it. All cases with 1,000 environments are within 15 % of it. With fewer, single cases are up to 42 %
beside it: `call` and `turn` are measured where the processor sleeps between two calls, and cost
less where it does not.

.. include:: scale.md
"""
