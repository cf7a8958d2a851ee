"""The episodes of a recording, as TimeSteps and actions."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping

from dm_env_rpc_client.errors import ProtocolError, RecordingError, SpecError
from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS
from dm_env_rpc_client.recording.agents import Agent
from dm_env_rpc_client.recording.episode import Episode
from dm_env_rpc_client.recording.reader import RecordedConnection, Scan
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a recording contains.

    Attributes:
      connections: the recorded connections, by number.
      episodes: the episodes, in the order in which they ended.
      is_complete: False if the recorder was killed, or still records.
    """

    connections: Mapping[int, RecordedConnection]
    episodes: list[Episode] = dataclasses.field(repr=False)
    is_complete: bool


def read(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Recording:
    """Reads a recording into memory; `episodes` reads it piece by piece.

    Args:
      path: the file. If its recorder was killed, it is read up to the last whole chunk.
      limits: what a message may contain, as for the connections that were recorded, and what a
        chunk and all TimeSteps together may take.

    Returns:
      The connections and the episodes.

    Raises:
      RecordingError: the file is not a recording, is damaged, exceeds the limits, or a connection
        breaks the protocol.
    """
    scan = Scan(path, limits)
    found = list(all_episodes(scan))
    return Recording(scan.connections, found, scan.is_complete)


def episodes(
    recording: str | os.PathLike[str] | Scan, limits: Limits = DEFAULT
) -> Iterator[Episode]:
    """Reads the episodes of a recording, one after the other.

    Args:
      recording: the file, or a `Scan` of it, whose `connections` and `is_complete` are those of the
        whole file at the end, and whose limits count.
      limits: as for `read`, for the episodes that have not ended.

    Yields:
      Each episode when it has ended; those that did not, at the end.

    Raises:
      As `read`. If a connection breaks the protocol, that is at the end, after all episodes that
      the file has whole; nothing of that connection is read after the message that breaks it.
    """
    scan = recording if isinstance(recording, Scan) else Scan(recording, limits)
    for episode in all_episodes(scan):
        yield episode
        scan.budget.release(episode.held_bytes)
        del episode


def all_episodes(scan: Scan) -> Iterator[Episode]:
    """Yields as `episodes`, for a reader that keeps the episodes, within the limits of the scan."""
    agents: dict[int, Agent] = {}
    numbers = itertools.count(1)
    failed: set[int] = set()
    failure: RecordingError | None = None
    for entry in scan:
        connection = entry.connection
        if connection.number in failed:
            continue
        agent = agents.get(connection.number)
        if agent is None:
            agent = agents[connection.number] = Agent(connection, scan)
        try:
            ended = collections.deque(agent.take(entry))
        except (*DECODE_ERRORS, ProtocolError, SpecError) as error:
            failed.add(connection.number)
            if failure is None:
                kind = "request" if entry.is_request else "answer"
                failure = RecordingError(
                    f"{scan.path}: {kind} {entry.sequence} of connection {connection.number} "
                    f"breaks the protocol: {error}"
                )
                failure.__cause__ = error
            continue
        while ended:
            episode = ended.popleft()
            episode.number = next(numbers)
            yield episode
            del episode
    for agent in agents.values():
        for episode in agent.unfinished:
            episode.number = next(numbers)
            yield episode
    if failure is not None:
        raise failure
