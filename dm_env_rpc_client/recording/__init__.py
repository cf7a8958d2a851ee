"""Recordings of connections: timestamped requests and answers in one MCAP file.

Recording requires the `record` extra. See the guide `docs/how-to/record-and-replay.md`.
"""

# Read `mcap_file.py` first, which writes the file, then `recorder.py`, which queues messages for it
# without delaying steps and assigns connections to files. `reader.py` reads a file, including one
# whose recorder was killed, within the budgets of `bounded_records.py`. `episodes.py` turns
# messages into TimeSteps and episodes; `rows.py` splits the steps of a batched world into rows.
# `replay.py` and `proxy.py` are servers. `adaptors/minari.py` exports episodes.

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
