"""The output of `dm-env-rpc serve`, as log lines or as a live table on a terminal."""

from __future__ import annotations

import collections
import datetime
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import rich.console
import rich.live
import rich.table
import rich.text

from dm_env_rpc_client.cli.consoles import console, json_text
from dm_env_rpc_client.cli.failures import OneLine
from dm_env_rpc_client.plain_text import one_line
from dm_env_rpc_client.system.sources import raised_by

if TYPE_CHECKING:
    from dm_env_rpc_client.server import Server

REFRESH_SECONDS = 0.5
FAILURES = 5

_ECHOED = len("^C") + 1
"""The number of columns kept free so that the terminal's echo of Ctrl-C does not wrap."""

_SERVER = "dm_env_rpc_client.server"
_SERVING = f"{_SERVER}.serving"
"""The logger of the listening address, silenced because the command itself prints the address."""

_LOGGERS = (_SERVER, "dm_env_rpc_client.bridges.gym_socket")


def log_activity(verbose: bool, as_json: bool) -> None:
    """Log connections, refused requests and failures to stderr.

    Args:
      verbose: whether to also log the transport's connections and all requests except steps.
      as_json: whether each line is a JSON object.
    """
    formatter = _JsonLine() if as_json else _TimedLine()
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLine):
            handler.setFormatter(formatter)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(_SERVING).setLevel(logging.WARNING)
    if verbose:
        for name in ("dm_env_rpc_client", *_LOGGERS):
            logging.getLogger(name).setLevel(logging.DEBUG)


class _TimedLine(OneLine):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record):%H:%M:%S} {super().format(record)}"


class _JsonLine(OneLine):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = raised_by(error)
        return json_text(line)


def _time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created).astimezone()


def can_show_table() -> bool:
    """Return whether stderr is a terminal that can redraw text."""
    return console.is_terminal and not console.is_dumb_terminal


def show_table(server: Server) -> None:
    """Show a server's activity until it stops, or raise KeyboardInterrupt on Ctrl-C."""
    failures = _Failures()
    root, server_log = logging.getLogger(), logging.getLogger(_SERVER)
    handlers, level = root.handlers, server_log.level
    root.handlers = [failures]
    server_log.setLevel(logging.INFO)
    seen, steps = time.monotonic(), 0
    try:
        with rich.live.Live(console=console, auto_refresh=False) as live:
            is_over = False
            while True:
                if is_over:
                    break
                stats, now = server.stats(), time.monotonic()
                rate = (stats.steps - steps) / max(now - seen, 1e-9)
                seen, steps = now, stats.steps
                live.update(_table(stats, rate, failures.lines), refresh=True)
                is_over = server.wait(REFRESH_SECONDS)
    finally:
        root.handlers = handlers
        server_log.setLevel(level)


def _table(stats: Any, rate: float, failures: Iterable[str]) -> rich.console.RenderableType:
    table = rich.table.Table(box=None, padding=(0, 3, 0, 0), show_header=True)
    columns = {
        "clients": f"{stats.streams}",
        "worlds": f"{stats.worlds}",
        "agents": f"{stats.agents}",
        "steps/s": f"{rate:,.0f}",
        "steps": f"{stats.steps:,}",
        "refused": f"{stats.refusals + stats.refused_streams:,}",
        "errors": f"{stats.errors:,}",
        "up": str(datetime.timedelta(seconds=int(stats.uptime))),
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True, header_style="dim")
    table.add_row(*columns.values())
    width = console.width - _ECHOED
    return rich.console.Group(
        table, *(rich.text.Text(one_line(line, width)) for line in list(failures))
    )


class _Failures(logging.Handler):
    """A log handler that keeps the latest lines about refused requests and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.deque[str] = collections.deque(maxlen=FAILURES)
        self.setFormatter(_TimedLine())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.name == _SERVER:
            self.lines.append(self.format(record))
