"""Recordings of connections: every request and answer with its time, in one MCAP file.

Read `container.py` first, the file, then `recorder.py`, which fills it without delaying steps;
`streams.py` is where messages are seen. `reading.py` reads a file, also one whose recorder was
killed, and `episodes.py` makes TimeSteps of it. `replaying.py` and `proxying.py` are servers. May
import `protocol`, `transports` and what they import; not `client` or `server`. It needs the extra
`record`.

## Recording

`record=` of `make`, `make_async`, `connect`, `connect_async`, `BatchedEnvironment`,
`RemoteVectorEnv` and `gymnasium.make` names a file, which must not exist:

```python
import dm_env_rpc_client
from dm_env_rpc_client import recording
from dm_env_rpc_client.server import Catch, serve

server = serve(Catch)
with dm_env_rpc_client.make(server.address, {"seed": 1}, record="run.mcap") as env:
    env.reset()
    for move in (0, 1, 2, 1, 1, 1, 1, 1, 1):
        env.step({"paddle": move})
```
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
