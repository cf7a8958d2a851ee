"""Recordings of connections: every request and answer with its time, in one MCAP file.

It needs the extra `record`. The guide is `docs/how-to/record-and-replay.md`.
"""

# Read `mcap_file.py` first, the file, then `recorder.py`, which fills it without delaying steps and
# says what goes to which file. `reader.py` reads a file, also one whose recorder was killed, and
# `bounded_records.py` has what it may take. `episodes.py` makes TimeSteps of it and says when
# episodes begin and end; `rows.py` divides the steps of a batched world. `replay.py` and `proxy.py`
# are servers. `adaptors/minari.py` exports.

from dm_env_rpc_client.extras import importing

with importing("record", "recordings need"):
    from dm_env_rpc_client.recording.episodes import Episode, Recording, episodes, read
    from dm_env_rpc_client.recording.proxy import Proxy, proxy
    from dm_env_rpc_client.recording.reader import Entry, RecordedConnection, Scan
    from dm_env_rpc_client.recording.recorder import Recorder
    from dm_env_rpc_client.recording.replay import Serving, replay

__all__ = [
    "Entry",
    "Episode",
    "Proxy",
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
