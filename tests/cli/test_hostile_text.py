"""Row 53: names, units, texts, properties and file names that control terminals."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import re
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import (
    DmEnvRpcClientError,
    SpecManager,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.cli import consoles
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import address_of, ended, started
from tests.cli.hostile import CLIPBOARD, EVIL, SPEC, evil_error, leftover, serving
from tests.cli.terminals import on_a_terminal
from tests.support.forks import run_command
from tests.support.scripted import settles
from tests.test_errors import ERRORS

pytestmark = pytest.mark.row(53)

TOLD = {"DM_ENV_RPC_TRACEBACK": "1", "DM_ENV_RPC_LOG": "debug", "SDL_VIDEODRIVER": "dummy"}
SHOWN = printable(CLIPBOARD)

SERVERS = {
    "serves": serving(),
    "refuses": serving(refuses="join_world"),
    "fails": serving(refuses="step"),
    "ends": serving(ends="step"),
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    servers = {name: ScriptedServer(script) for name, script in SERVERS.items()}
    folder = tmp_path_factory.mktemp("hostile")
    # A slash ends the name, and NUL cannot be in one; 255 bytes are the most.
    named = folder / (re.sub("[/\0]", "", EVIL)[:120] + ".mcap")
    made = {name: server.address for name, server in servers.items()}
    with make(made["serves"], record=named) as env:
        env.step({f"a{EVIL}": 1})
    yield {**made, "file": str(named)}
    for server in servers.values():
        server.stop()


# Each command, and whether the server's text is a part of what it shows; None: on terminals.
COMMANDS = [
    (["inspect", "{serves}"], True),
    (["inspect", "{refuses}"], True),
    (["inspect", "{ends}"], True),
    (["inspect", "{file}"], True),
    (["inspect", "{file}.missing"], True),
    (["run", "{serves}", "-n", "1", "--max-steps", "2"], False),
    (["run", "{fails}", "-n", "1"], True),
    (["run", "{ends}", "-n", "1"], True),
    (["run", "{serves}", "-n", "1", "--world", EVIL.replace("\0", ""), "--max-steps", "2"], None),
    (["check", "{serves}", "--timeout", "1", "--only", "world"], True),
    (["check", "{fails}", "--timeout", "1", "--only", "observations"], True),
    (["bench", "{serves}", "--seconds", "0.2"], False),
    (["bench", "{fails}", "--seconds", "0.2", "--transport", "grpc"], True),
    (["bench", "{ends}", "--seconds", "0.2", "--transport", "grpc"], True),
    (["properties", "list", "{serves}", "--values"], True),
    (["properties", "list", "{serves}", "key"], True),
    (["properties", "get", "{serves}", "unit"], True),
    (["properties", "get", "{serves}", EVIL.replace("\0", "")], True),
    (["properties", "set", "{serves}", f"unit={EVIL}".replace("\0", "")], True),
    (["play", "{serves}"], True),
    (["play", "{ends}", "--keys", "a=1"], True),
    (["health", "{serves}", "--service", CLIPBOARD], False),
    (["replay", "{file}.missing"], True),
    (["export", "{file}.missing", "catch/run-v0"], True),
]  # fmt: skip
AS_JSON = [words for words, _ in COMMANDS if words[0] not in ("play", "replay", "export")]


@pytest.mark.parametrize(("words", "is_quoted"), COMMANDS, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("on_terminal", [False, pytest.param(True, marks=pytest.mark.pty)])
def test_no_command_lets_a_server_control_the_terminal(
    words: list[str], is_quoted: bool | None, on_terminal: bool, addresses: dict[str, str]
) -> None:
    if "export" in words:
        pytest.importorskip("minari")
    filled = [word.format(**addresses) if word != EVIL else word for word in words]
    if on_terminal:
        shown = on_a_terminal(*filled, environment=TOLD)
    else:
        finished = run_command(*filled, environment=TOLD)
        shown = finished.stdout + finished.stderr
    assert leftover(shown, on_terminal) == []
    assert "bug in dm-env-rpc" not in shown
    # Not vacuous: what would have controlled it can be read.
    assert (on_terminal if is_quoted is None else is_quoted) == bool(
        re.search(r"\\(x1b|033)", shown)
    ), shown


@pytest.mark.parametrize("words", AS_JSON, ids=lambda value: repr(value)[:40])
def test_json_escapes_as_json_does(words: list[str], addresses: dict[str, str]) -> None:
    finished = run_command(*[word.format(**addresses) for word in words], "--json")
    assert leftover(finished.stdout + finished.stderr, on_terminal=False) == []
    if words[:2] in (["inspect", "{serves}"], ["properties", "list"]) and finished.stdout:
        assert EVIL in repr(json.loads(finished.stdout)).encode().decode("unicode_escape")


def test_serve_and_record_and_replay(addresses: dict[str, str], tmp_path: Path) -> None:
    recorded = str(tmp_path / f"{CLIPBOARD}.mcap")
    commands = {
        "serve": ["catch", "--verbose"],
        "record": [recorded, "--upstream", addresses["serves"]],
        "replay": [addresses["file"]],
    }
    for name, words in commands.items():
        for more in ([], ["--json"]):
            if name == "record":
                Path(recorded).unlink(missing_ok=True)
            process = started(name, *words, *more, "--address", "localhost:0")
            address = address_of(process)
            for ask in (create_world, reset_world, join_world):
                arguments = [{EVIL: EVIL}] if ask is create_world else [EVIL, {EVIL: EVIL}]
                with connect(address) as own, contextlib.suppress(DmEnvRpcClientError):
                    ask(own, *arguments)
            assert leftover(ended(process, signal.SIGINT), on_terminal=False) == []


def test_errors_escape_what_they_quote() -> None:
    for error, _ in ERRORS:
        evil: Any = pickle.loads(pickle.dumps(error))
        evil.args = tuple(EVIL if isinstance(each, str) else each for each in evil.args)
        for name in ("message", "reason", "command", "logs", "key", "address"):
            if name in vars(evil):
                setattr(evil, name, EVIL)
        if hasattr(evil, "_status"):
            evil._status.CopyFrom(evil_error())
        assert leftover(str(evil), on_terminal=False) == []
        assert leftover(repr(evil), on_terminal=False) == []


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("name", ["refuses", "fails", "ends"])
def test_a_traceback_of_a_user_s_program(
    transport: Any, name: str, addresses: dict[str, str]
) -> None:
    with (
        pytest.raises(DmEnvRpcClientError) as raised,
        make(addresses[name], transport=transport) as env,
    ):
        env.step({f"a{EVIL}": 1})
    text = "".join(traceback.format_exception(raised.value))
    assert SHOWN in text
    assert leftover(text, on_terminal=False) == []


def test_reprs(addresses: dict[str, str]) -> None:
    with make(addresses["serves"]) as env:
        properties = PropertiesExtension(env.connection)
        things = [
            *(env, env.connection, env.action_spec(), properties, *properties.list()),
            *(properties.tree(), SpecManager({1: SPEC})),
        ]
        assert any(SHOWN in repr(thing) for thing in things)
        for thing in things:
            assert leftover(repr(thing), on_terminal=False) == [], type(thing)


class Quoting(Catch):
    """Fails with what the client sent."""

    def __init__(self, text: str):
        raise LookupError(text)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_the_log_of_a_server(transport: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dm_env_rpc_client")
    with serve(Quoting, transport=transport) as server, connect(server.address) as connection:
        for settings in ({"text": EVIL}, {EVIL: 1}):
            with pytest.raises(DmEnvRpcClientError):
                create_world(connection, settings)
        with pytest.raises(DmEnvRpcClientError):
            connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=EVIL))
        assert settles(lambda: "LookupError" in caplog.text)
    assert SHOWN in caplog.text
    assert leftover(caplog.text, on_terminal=False) == []


def test_commands_write_in_one_place_only() -> None:
    writes = re.compile(r"typer\.echo\(|rich\.console\.Console\(|(?<![\w.])print\(|std\w+\.write\(")
    # The others write what stands in them.
    allowed = {"consoles.py", "app.py", "entry.py", "init.py"}
    folder = Path(consoles.__file__).parent
    found = {path.name for path in folder.rglob("*.py") if writes.search(path.read_text())}
    assert found <= allowed
