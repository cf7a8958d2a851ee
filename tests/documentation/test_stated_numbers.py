"""Numbers that a docstring, a guide or a help text states are those of the code."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import dm_env_rpc_client
from dm_env_rpc_client import Limits, server
from dm_env_rpc_client.cli import health
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.distributed import on_ray
from dm_env_rpc_client.environment import base_adaptor
from dm_env_rpc_client.launch import containers, launched, processes
from dm_env_rpc_client.protocol import pipeline
from dm_env_rpc_client.recording import mcap_file, recorder
from dm_env_rpc_client.server import batch_settings, errors, serving
from dm_env_rpc_client.server.processes import worker_main, worker_pool
from dm_env_rpc_client.system import children
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.displays import images
from dm_env_rpc_client.transports import server_streams, streams
from dm_env_rpc_client.transports.net import keepalive, sockets

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


class Stated(NamedTuple):
    """A place that states a number.

    Attributes:
      where: a page; or `module:name` of what has the docstring, `module:` for that of a module.
      pattern: the words around the number, which is its group.
      value: the number in the code.
      is_bound: whether the number may be larger than that.
    """

    where: str
    pattern: str
    value: float
    is_bound: bool = False


CONNECTING = default(dm_env_rpc_client.connect, "timeout")
FROZEN = pipeline.KEEPALIVE_SECONDS
LOADING = pipeline.LOADING_KEEPALIVE_SECONDS
STOPPING = worker_pool._STOP_SECONDS + 2 * worker_pool._END_SECONDS
TIMEOUTS = "docs/how-to/timeouts.md"
RECORDING = "docs/how-to/record-and-replay.md"
RECORDED = "recording.recorder:"

STATED = [
    Stated("environment.worlds:make", r"or for a launched server to answer \(default: (\d+)\)",
           processes.START_SECONDS),
    Stated("client.connecting:connect", r"None for (\d+) s while the answer to a step", FROZEN),
    Stated("client.connecting:connect", r"and (\d+) s while a world is created", LOADING),
    Stated("client.connecting:connect", r"machine is detected within (\d+) s",
           sockets.UNREACHABLE_SECONDS),
    Stated("environment.worlds:make", r"None for (\d+) s in a step", FROZEN),
    Stated("environment.worlds:make", r"in a step and (\d+) s while", LOADING),
    Stated("launch.processes:from_process", r"and SIGKILL (\d+) s later", children.GRACE_SECONDS),
    Stated("launch.containers:from_docker", r"or (\d+) with `target`", containers._STANDALONE_PORT),
    Stated("launch.launched:Launch.logs", r"(\d+) KiB", launched.LOG_BYTES >> 10),
    Stated("launch.launched:Launch.end", r"up to (\d+) s", launched._END_SECONDS),
    Stated("distributed.on_ray:end", r"up to (\d+) seconds", on_ray._END_SECONDS),
    Stated("transports.health_check:check_health", r"At most (\d+) bytes",
           health._LONGEST_NAME),
    Stated("tensors.bounded_parsing:", r"up to (\d+) KiB are parsed without",
           bounded_parsing.SMALL_BYTES >> 10),
    Stated("tensors.displays.images:is_image", r"up to (\d+) channels", images._MOST_PLANES),
    Stated(RECORDED, r"every (\d+) ms", recorder._TAKE_SECONDS * 1e3),
    Stated(RECORDED, r"after (\d+) ms", recorder.FLUSH_SECONDS * 1e3),
    Stated(RECORDED, r"falls behind by (\d+) MiB", recorder.MAX_WAITING_BYTES / MIB),
    Stated(TIMEOUTS, r"connecting times out after (\d+) seconds", CONNECTING),
    Stated(TIMEOUTS, r"`make`, `connect`: connecting \| (\d+) s", CONNECTING),
    Stated(TIMEOUTS, r"such as a property \| (\d+) s", FROZEN),
    Stated(TIMEOUTS, r"left or destroyed \| (\d+) s", LOADING),
    Stated(TIMEOUTS, r"unreachable machine \| (\d+) s", sockets.UNREACHABLE_SECONDS),
    Stated(TIMEOUTS, r"network is noticed within (\d+) seconds", sockets.UNREACHABLE_SECONDS),
    Stated(TIMEOUTS, r"frozen server is noticed within (\d+) seconds", FROZEN),
    Stated(TIMEOUTS, r"and within (\d+) seconds while", LOADING),
    Stated(TIMEOUTS, r"a launched server, until it answers \| (\d+) s", processes.START_SECONDS),
    Stated(TIMEOUTS, r"until all players have stepped \| (\d+) s",
           default(server.serve, "step_timeout")),
    Stated(TIMEOUTS, r"until it is destroyed \| (\d+) s",
           default(server.serve, "idle_world_seconds")),
    Stated(TIMEOUTS, r"streams of a stopping server \| (\d+) s", serving.STOP_SECONDS),
    Stated("docs/how-to/launch.md", r"and SIGKILL (\d+) s later", children.GRACE_SECONDS),
    Stated("docs/how-to/serve.md", r"stays stopped for (\d+) s", worker_pool._STOPPED_SECONDS),
    Stated("docs/how-to/serve.md", r"has sent nothing for (\d+) s", server_streams.IDLE_SECONDS),
    Stated("docs/how-to/serve.md", r"at most (\d+) s after the grace", STOPPING),
    Stated("docs/how-to/serve.md", r"server takes (\d+) streams",
           default(server.serve, "max_connections")),
    Stated("server.options:ServeOptions", r"has sent nothing for (\d+) s",
           server_streams.IDLE_SECONDS),
    Stated("server.serving:Server.stop", r"the grace and (\d+) s", STOPPING),
    Stated(TIMEOUTS, r"a stopping server, after the grace \| (\d+) s", STOPPING),
    Stated("docs/how-to/batches.md", r"has at most ([\d,]+) rows", batch_settings.MAX_ROWS),
    Stated("docs/how-to/batches.md", r"observations take at most (\d+) MiB",
           streams.MAX_MESSAGE_BYTES / MIB),
    Stated("docs/how-to/batches.md", r"no probe for (\d+) s is considered lost", LOADING),
    Stated("docs/how-to/many-environments.md", r"allows (\d+) clients by default",
           default(server.serve, "max_connections")),
    Stated("docs/how-to/containers.md", r"close their environments within (\d+) s",
           worker_main._EXIT_SECONDS),
    Stated(RECORDING, r"(\d+) MiB are queued", recorder.MAX_WAITING_BYTES / MIB),
    Stated(RECORDING, r"after ([\d.]+) s, or when", recorder.FLUSH_SECONDS),
    Stated(RECORDING, r"or when it reaches (\d+) MiB", mcap_file._CHUNK_BYTES / MIB),
    Stated(RECORDING, r"`Limits.chunk_bytes` \((\d+) MiB\)", Limits().chunk_bytes / MIB),
    Stated("docs/explanations/how-a-step-travels.md", r"`unroll` of up to ([\d,]+) steps",
           base_adaptor.UNROLL_AHEAD),
    Stated("docs/explanations/how-a-step-travels.md", r"answers have more than (\d+) MiB",
           base_adaptor.AHEAD_BYTES / MIB),
    Stated("docs/explanations/performance.md", r"is noticed within (\d+) seconds", FROZEN),
    Stated("docs/explanations/performance.md", r"pauses for (\d+) seconds is not considered lost",
           keepalive.PROBE_SECONDS),
    Stated("docs/explanations/reliability.md", r"within (\d+) s in any request",
           sockets.UNREACHABLE_SECONDS),
    Stated("CHANGELOG.md", r"A launched server has (\d+) s until it must answer",
           processes.START_SECONDS),
    Stated("CHANGELOG.md", r"`Server.errors` holds the last (\d+) exceptions",
           errors.KEPT_ERRORS),
]  # fmt: skip


def text_of(where: str) -> str:
    """A page, or a docstring, in one line."""
    if where.endswith(".md"):
        text: str | None = (ROOT / where).read_text()
    else:
        module, _, name = where.partition(":")
        thing: Any = importlib.import_module(f"dm_env_rpc_client.{module}")
        for part in name.split(".") if name else ():
            thing = getattr(thing, part)
        text = inspect.getdoc(thing)
    return " ".join((text or "").split())


@pytest.mark.parametrize("stated", STATED, ids=lambda each: f"{each.where} {each.pattern}")
def test_a_number_is_the_one_of_the_code(stated: Stated) -> None:
    found = re.findall(stated.pattern, text_of(stated.where))
    assert found, "the words have changed: change the pattern, too"
    for number in (float(text.replace(",", "")) for text in found):
        assert number >= stated.value if stated.is_bound else number == stated.value


def test_every_row_of_the_guide_to_timeouts_with_a_number_is_compared() -> None:
    rows = re.findall(r"^\| .*\| \d[^|]*\|.*$", (ROOT / TIMEOUTS).read_text(), re.MULTILINE)
    assert len(rows) > 5
    patterns = [stated.pattern for stated in STATED if stated.where == TIMEOUTS]
    others = [row for row in rows if not any(re.search(each, row) for each in patterns)]
    assert [row.partition(" |")[0] for row in others] == ["| a shell command"]


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for sub_name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name}{sub_name} ")
        else:
            yield f"{name}{sub_name}", command


def test_the_timeouts_of_commands_are_those_of_the_guide() -> None:
    defaults = {
        name: option.default
        for name, command in commands(typer.main.get_command(app))
        for option in command.params
        if "--timeout" in option.opts
    }
    assert len(defaults) > 7
    (row,) = re.findall(r"\| a shell command \| (\d+) s; `(\w+)` (\d+) s", text_of(TIMEOUTS))
    usual, other, seconds = row
    assert defaults == {name: float(seconds if name == other else usual) for name in defaults}
    assert other in defaults
