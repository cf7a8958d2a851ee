"""Recordings of connections: every request and answer with its time, in one MCAP file.

Read `container.py` first, the file, then `tape.py`, which fills it without delaying steps, and
`recorder.py`, which says what goes to which file; `streams.py` is where messages are seen.
`reading.py` reads a file, also one whose recorder was killed, and `episodes.py` makes TimeSteps of
it. `replaying.py` and `proxying.py` are servers; `parquet.py` and `minari.py` export. May import
`protocol`, `transports` and what they import; not `client` or `server`. It needs the extra
`record`.

## Recording

`record=` of `make`, `connect`, their twins for asyncio, `BatchedEnvironment`, `RemoteVectorEnv`,
`RemoteParallelEnv` and `gymnasium.make` names a file, which must not exist:

```python
import dm_env_rpc_client
from dm_env_rpc_client import recording
from dm_env_rpc_client.server import Catch, serve

moves = [0, 1, 2, 1, 1, 1, 1, 1, 1]


def play(address, **options):
    with dm_env_rpc_client.make(address, {"seed": 1}, **options) as env:
        return [env.reset(), *(env.step({"paddle": move}) for move in moves)]


with serve(Catch) as server:
    seen = play(server.address, record="run.mcap")
```

All connections that are opened with the same path, while one of them is open, share the file, each
with two channels: `/connection-1/requests` and `/connection-1/answers`. The file is complete when
the last one is closed. An environment that is started again (`restart=`) goes on with another
connection in the same file. A `recording.Recorder` outlives connections: `record=recorder`. If
nothing is recorded, that costs nothing.

Any client, in any language, is recorded by a proxy between it and its server. It forwards messages
unchanged, and metadata such as tokens, which are not recorded:

```sh
dm-env-rpc record run.mcap --upstream localhost:50051 --address localhost:50052
```

`recording.proxy(upstream, path)` is the same in Python.

## What is promised

- **Exact bytes.** A recording has the bytes of every message as it was sent or received, in order,
  numbered from 1 per direction, with nanoseconds since the epoch. Metadata of the call, tokens and
  credentials are never recorded; messages are, whatever is in them.
- **Nothing is dropped.** A thread writes. If the disk does not keep up and 64 MiB wait, steps wait,
  too. If writing fails, because the disk is full or takes nothing for a minute, the connection ends
  with a RecordingError as the cause, since a recording with a hole would look complete. A chunk
  that is missing or damaged is an error when the file is read.
- **A process that is killed loses the last moments only.** A chunk is handed to the operating
  system after 0.1 s, or when it has 1 MiB. A file without an end is read up to its last whole
  chunk, by `read`, `replay` and all commands. What the operating system has, it writes also after
  SIGKILL; a machine that loses power may lose more, since files are not synced.
- **Nothing is overwritten.** The file must not exist. If its connections are closed, and it was
  renamed, removed, replaced or changed, the next one of a `Recorder` is a RecordingError.
- **Forks.** A forked child records nothing to a file of its parent.

Medians of `python -m tests.benchmarks --only recording`, run several times on a busy machine with
two cores, in times of a step that is not recorded:

| observation | recorded | through the proxy |
| --- | --- | --- |
| float32 scalar | 0.94 to 1.10 | 1.9 to 2.4 |
| float64[256] | 1.0 to 1.3 | 1.8 to 2.5 |
| uint8 84x84x4 | 1.0 to 1.6 | 2.2 to 2.9 |
| float32 84x84x4 | 1.7 to 2.2 | 2.5 to 3.2 |

Large observations cost a copy and the compression (`Recorder(path, compression="lz4")` or
`"none"`). Through the proxy a step passes two more sockets, and another process. If client, proxy,
server and compression do not find a free core, that takes longer: up to 5.9 times was seen with
float32 84x84x4.

## Reading

```python
run = recording.read("run.mcap")
episode = run.episodes[0]
print(episode.timesteps.observation["board"].shape)  # (10, 10, 5)
print(episode.actions["paddle"], episode.end)  # [0 1 2 1 1 1 1 1 1] terminated
print(episode.episode_return == seen[-1].reward)  # True
```

`timesteps` and `actions` are stacked along time, as those of `unroll`. `recording.episodes(path)`
reads one episode after the other, for files that are larger than memory, and `recording.Scan(path)`
message by message. If a connection breaks the protocol, `episodes` and `inspect` give the episodes
of the others and then the error. From a shell:

```sh
dm-env-rpc inspect run.mcap                             # episodes, returns, durations, an image
dm-env-rpc export run.mcap --to parquet run.parquet     # a row for each TimeStep (extra `parquet`)
dm-env-rpc export run.mcap --to minari catch/run-v0     # a data set (extra `minari`)
```

The file is [MCAP](https://mcap.dev) with the messages' protobuf schemas inside, so that other
programs read it without this package:

```python
from mcap.reader import make_reader

with open("run.mcap", "rb") as file:
    for schema, channel, message in make_reader(file).iter_messages():
        pass
    print(channel.topic, schema.name)  # /connection-1/answers dm_env_rpc.v1.EnvironmentResponse
```

`mcap.reader` needs the end of the file. For one whose recorder was killed, MCAP's own command
`mcap recover` writes it.

## Replaying

A recording is served without the environment, so that a test of an agent needs no engine:

```python
with recording.replay("run.mcap") as replayed:
    again = play(replayed.address)
print(all((a.observation["board"] == b.observation["board"]).all() for a, b in zip(seen, again)))
# True
```

The same requests get the recorded answers, bit for bit. Another request gets an error that names it
and the recorded one, and changes nothing. Each connection gets the first recorded one that begins
with the same request and was not served yet; when all were, they are served again. Environments of
a batch connect in any order, so that each needs create settings of its own, such as a seed, to get
the recording of the same one. Each served connection reads the file on its own, as far as it has
come, so that a recording may be larger than memory. From a shell it is `dm-env-rpc replay
run.mcap`.
"""

from dm_env_rpc_client.errors import install_command

try:
    from dm_env_rpc_client.recording.episodes import Episode, Recording, episodes, read
    from dm_env_rpc_client.recording.proxying import proxy
    from dm_env_rpc_client.recording.reading import Entry, RecordedConnection, Scan
    from dm_env_rpc_client.recording.recorder import Recorder
    from dm_env_rpc_client.recording.replaying import replay
    from dm_env_rpc_client.recording.serving import Serving
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}; recordings need the extra: {install_command('record')}", name=error.name
    ) from error

__all__ = [
    "Entry",
    "Episode",
    "RecordedConnection",
    "Recorder",
    "Recording",
    "Scan",
    "Serving",
    "episodes",
    "proxy",
    "read",
    "replay",
]
