"""What a scenario gets, and what runs it: servers behind relays, and a place for what is seen."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dm_env_rpc_client
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EnvironmentsFailedError,
)
from dm_env_rpc_client.server import serve
from tests.transcripts.canonical import ERROR_WIDTH, Placeholders, cut, digest, lines_of_streams
from tests.transcripts.readable import value_text
from tests.transcripts.streams import PATH, streams_of, turns
from tests.transcripts.tap import CLIENT, Tap

WIDTH = 80
"""Characters of a line."""

_CLEAN_UP_SECONDS = 60.0

_TIMES = 3

_TRACEBACK = "On the server:"


class Shared:
    """Servers that take long to start, for all scenarios that ask for them; a context."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._made: dict[Any, Any] = {}

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._made.clear()
        self._stack.close()

    def get(self, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
        """Enters the context that a function makes, once; returns what it gives."""
        if make not in self._made:
            self._made[make] = self._stack.enter_context(make())
        return self._made[make]


class Scene:
    """One run of a scenario.

    Attributes:
      shared: what scenarios share.
      stack: is closed at the end: clients before relays, and these before servers.
      folder: an empty one.
    """

    def __init__(self, shared: Shared, stack: contextlib.ExitStack, folder: Path):
        self.shared = shared
        self.stack = stack
        self.folder = folder
        self._taps: list[Tap] = []
        self._other_taps: list[Tap] = []
        self._seen: list[tuple[bool, str]] = []

    def serve(self, environment: Any, **options: Any) -> str:
        """Serves an environment; returns the address of a relay before it."""
        return self.tap(self.stack.enter_context(serve(environment, **options)).address)

    def tap(self, upstream: str, address: str = "127.0.0.1:0") -> str:
        """Puts a relay before a server; returns its address."""
        tap = self.stack.enter_context(Tap(upstream, address))
        self._taps.append(tap)
        return tap.address

    def tap_other(self, upstream: str) -> str:
        """Does the same for a server of another protocol, in which each end waits for the other."""
        tap = self.stack.enter_context(Tap(upstream))
        self._other_taps.append(tap)
        return tap.address

    def start(self, call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        """Calls a function in a thread of its own."""
        pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        return pool.submit(call)

    def cut(self) -> None:
        """Breaks all connections off at the relays."""
        for tap in self._taps:
            tap.cut()

    def see(self, *values: Any) -> None:
        """Writes down what a client has seen."""
        texts = [each if isinstance(each, str) else value_text(each) for each in values]
        self._seen.append((False, " ".join(texts)))

    @contextlib.contextmanager
    def fails(self, what: str) -> Iterator[None]:
        """Writes down the error of what is called within; that there is none, too."""
        try:
            yield
        except Exception as error:
            # Not the server's traceback, which shows how the server is made.
            text = str(error).partition(_TRACEBACK)[0]
            self._seen.append((True, f"{what}: {type(error).__name__}: {text}"))
        else:
            self._seen.append((True, f"{what}: no error"))

    def lines(self, by_hand: bool, width: int | None) -> list[str]:
        """Returns the transcript, when all ends are closed."""
        replace = Placeholders()
        connections = [chunks for tap in self._taps for chunks in tap.connections]
        found = [stream for chunks in connections for stream in streams_of(chunks)]
        # Others ask for the server's health: how that is done is the transport's own matter.
        streams = [stream for stream in found if stream.path == PATH]
        lines = lines_of_streams(streams, replace, by_hand, width)
        for tap in self._other_taps:
            for chunks in tap.connections:
                lines.append("-- connection")
                for who, data in turns(chunks):
                    text = replace(repr(data))
                    line = f"{len(data)} {digest(text.encode())} {text}"
                    lines.append(cut(f"{'>' if who == CLIENT else '<'} {line}", width))
        if self._seen:
            lines.append("-- seen")
        for is_error, seen in self._seen:
            # One line, whatever is in an error.
            text = replace(" / ".join(seen.splitlines()))
            longest = ERROR_WIDTH if is_error and width is not None else width
            if width is not None and len(text) + 2 > width:
                text = f"{digest(text.encode())} {text}"
            lines.append(cut(f". {text}", longest))
        return _collapsed(lines)


def _collapsed(lines: list[str]) -> list[str]:
    """Lines, of which the same ones in succession are counted."""
    return [
        line if count == 1 else f"{line} x{count}"
        for line, count in ((line, len(list(same))) for line, same in itertools.groupby(lines))
    ]


class Scenario(NamedTuple):
    """What is done between a client and a server.

    Args:
      play: does it.
      by_hand: whether both ends code steps by hand, so that these are compared byte for byte. False
        where protobuf codes them: for another client or server, and for steps in unusual forms.
      needs: the groups of programs that have to be there, as in `tests/support/groups.py`.
    """

    play: Callable[[Scene], Any]
    by_hand: bool = True
    needs: str = ""


def transcript(scenario: Scenario, shared: Shared, width: int | None = WIDTH) -> list[str]:
    """Runs a scenario, and returns its transcript.

    It is run again, twice at most, if a connection was not opened or kept in time: both ends have
    limits for that, which a busy machine exceeds.

    Args:
      scenario: what is done.
      shared: what scenarios share.
      width: of a line; None for whole ones.
    """
    for _ in range(_TIMES - 1):
        try:
            return _transcript(scenario, shared, width)
        except (ConnectionLostError, DeadlineExceededError, EnvironmentsFailedError):
            continue
    return _transcript(scenario, shared, width)


def _transcript(scenario: Scenario, shared: Shared, width: int | None) -> list[str]:
    with (
        tempfile.TemporaryDirectory(prefix="transcript-") as folder,
        _quiet(),
        _patient(),
    ):
        with contextlib.ExitStack() as stack:
            scene = Scene(shared, stack, Path(folder))
            played = scenario.play(scene)
            if isinstance(played, Awaitable):
                asyncio.run(_done(played))
        return scene.lines(scenario.by_hand, width)


async def _done(awaitable: Awaitable[Any]) -> None:
    await awaitable


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """A client that closes waits as long as it takes, whatever else the machine does."""
    name = "CLEAN_UP_SECONDS"
    package = f"{dm_env_rpc_client.__name__}."
    modules = [module for key, module in list(sys.modules.items()) if key.startswith(package)]
    kept = [(module, vars(module)[name]) for module in modules if name in vars(module)]
    for module, _ in kept:
        setattr(module, name, _CLEAN_UP_SECONDS)
    try:
        yield
    finally:
        for module, seconds in kept:
            setattr(module, name, seconds)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Environments fail on purpose here, and servers and clients say so."""
    log = logging.getLogger(dm_env_rpc_client.__name__)
    one_file = logging.getLogger("dm_env_rpc_server")
    levels = log.level, one_file.level
    log.setLevel(logging.CRITICAL + 1)
    one_file.setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            log.setLevel(levels[0])
            one_file.setLevel(levels[1])
