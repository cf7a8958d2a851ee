"""Records episodes in a subfolder of the operator's folder when a client sends a Monitor packet.

The file `episodes.jsonl` contains one line of JSON for each finished episode, with the keys
"episode" (from 0), "reward" (the total), "length" (in steps), "seconds" (since its reset) and
"is_terminated" (false if a time limit ended it).
"""

from __future__ import annotations

import json
import pathlib
import time

from dm_env_rpc_client.errors import SpecError

EPISODES = "episodes.jsonl"


class EpisodeRecorder:
    """A recorder that writes one line for each finished episode.

    Args:
      folder: the folder of the recording; created if it does not exist.
      resume: append to an existing recording.
      force: remove an existing recording.

    Raises:
      SpecError: a recording exists, and neither `resume` nor `force` is True.
      OSError: the folder or the file cannot be written.
    """

    def __init__(self, folder: pathlib.Path, resume: bool, force: bool):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / EPISODES
        if force:
            self._path.unlink(missing_ok=True)
        elif self._path.exists() and not resume:
            raise SpecError(
                f"{folder.name!r} already contains a recording; send resume to append to it, or "
                "force to remove it"
            )
        self._path.touch()
        with self._path.open(encoding="utf-8") as lines:
            self._count = sum(1 for _ in lines)
        self._start: float | None = None

    def begin(self) -> None:
        """Begin an episode. Steps before the first episode are not recorded."""
        self._start, self._reward, self._length = time.monotonic(), 0.0, 0

    def add_step(self, reward: float, is_last: bool, is_terminated: bool) -> None:
        """Add a step, and write the episode's line if the step is the last one."""
        if self._start is None:
            return
        self._reward += reward
        self._length += 1
        if is_last:
            line = {
                "episode": self._count,
                "reward": self._reward,
                "length": self._length,
                "seconds": round(time.monotonic() - self._start, 6),
                "is_terminated": is_terminated,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self._count += 1
            self._start = None


def folder_below(root: pathlib.Path, directory: str) -> pathlib.Path:
    """Resolve the client's path `directory` to a folder below `root`.

    Args:
      root: the folder that the operator allowed.
      directory: the client's path, relative to `root` or absolute.

    Raises:
      SpecError: `directory` leads out of `root`, through "..", a link or an absolute path; or it
        is not a valid path.
    """
    root = root.resolve()
    try:
        folder = (root / directory).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # NUL, too long, a loop of links.
        raise SpecError(f"{directory!r} is not a valid path: {error}") from None
    if folder == root or not folder.is_relative_to(root):
        raise SpecError(f"{directory!r} is not below the folder for this server's recordings")
    return folder
