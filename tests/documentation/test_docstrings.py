"""Public docstrings say everything, promised names are there, and stated numbers are the code's."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
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

_PACKAGE = "dm_env_rpc_client"

# The modules with public names, which are listed in their `__all__`.
PUBLIC_MODULES = (
    _PACKAGE,
    *(
        f"{_PACKAGE}.{name}"
        for name in (
            "environment.base_adaptor",
            "environment.batched",
            "adaptors.gymnasium",
            "adaptors.vector",
            "bridges.env_c_api",
            "bridges.gym_socket",
            "compliance",
            "distributed",
            "extensions.legacy_properties",
            "extensions.properties",
            "notebook",
            "recording",
            "server",
            "testing",
        )
    ),
)

# What is promised, by module: names that people's code imports.
PROMISED = {
    "dm_env_rpc_client": """
        connect make make_async Connection AsyncConnection connect_async
        create_secure_channel_and_connect create_world join_world create_and_join_world
        reset_world destroy_world leave_world DmEnvAdaptor AsyncDmEnvAdaptor SpecManager
        pack_tensor unpack_tensor tensor_spec_to_dm_env_spec dm_env_spec_to_tensor_spec bounds
        Bounds set_bounds flatten_dict unflatten_dict dm_env_rpc_pb2 properties_pb2 errors
        DmEnvRpcClientError DmEnvRpcError ConnectionClosedError ConnectionLostError
        DeadlineExceededError ProtocolError SpecError AutoObservations
        DmEnvAdaptor.step DmEnvAdaptor.reset DmEnvAdaptor.step_async DmEnvAdaptor.unroll
        Connection.send Connection.submit Connection.close observe_requests ObservedRequest
        SpecManager.pack SpecManager.unpack SpecManager.names SpecManager.uid_to_name
    """,
    "dm_env_rpc_client.errors": "DmEnvRpcError DmEnvRpcError.code DmEnvRpcError.details",
    "dm_env_rpc_client.extensions.properties": "PropertiesExtension PropertySpec",
    "dm_env_rpc_client.extensions.legacy_properties": "LegacyProperties",
    "dm_env_rpc_client.server": "serve Server Server.stop World Game Properties Catch Race",
    "dm_env_rpc_client.distributed": "LocalRollouts RayRollouts RayServers",
    "dm_env_rpc_client.testing": "FaultProxy ScriptedServer",
    "dm_env_rpc_client.compliance": "run Options CHECKS",
    "dm_env_rpc_client.adaptors.gymnasium": "GymnasiumEnv GymnasiumEnvironment RemoteVectorEnv",
    "dm_env_rpc_client.adaptors.vector": "RemoteVectorEnv",
    "dm_env_rpc_client.bridges.gym_socket": "GymSocketEnvironment serve Server",
    "dm_env_rpc_client.bridges.env_c_api": "EnvCApiEnvironment",
    "dm_env_rpc_client.notebook": "explore Explorer",
}


def public_things() -> Iterator[tuple[str, Any]]:
    """Yields each public function, method, property and class, with its name."""
    seen = set()
    for module_name in (*PUBLIC_MODULES, "dm_env_rpc_client.errors"):
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            home = getattr(thing, "__module__", "")
            if id(thing) in seen or not home.startswith("dm_env_rpc_client") or "_pb2" in home:
                continue
            seen.add(id(thing))
            yield f"{module_name}.{name}", thing
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_"):
                        yield f"{module_name}.{name}.{member}", value


def function_of(thing: Any) -> Callable[..., Any] | None:
    """The function behind a function, a method or a class method."""
    unwrapped = getattr(thing, "__func__", thing)
    return unwrapped if inspect.isfunction(unwrapped) else None


def documented_modules() -> Iterator[Any]:
    """All modules of the package that can be imported here."""
    package = importlib.import_module(_PACKAGE)
    for found in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        # What is generated, what runs on other Pythons, and what runs when it is imported.
        if re.search(r"\._proto|\.standalone\.|\.__main__$", found.name):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:
            if (error.name or "").startswith(_PACKAGE):
                raise


def test_every_method_has_a_docstring_or_overrides_one_that_has() -> None:
    seen, missing = 0, []
    for module in documented_modules():
        for name, made in vars(module).items():
            if name.startswith("_") or not inspect.isclass(made):
                continue
            if made.__module__ != module.__name__:
                continue
            for member, value in vars(made).items():
                is_method = function_of(value) is not None or isinstance(value, property)
                is_field = member in getattr(made, "__dataclass_fields__", ())
                if member.startswith("_") or not is_method or is_field:
                    continue
                seen += 1
                if not any(
                    inspect.getdoc(getattr(base, member, None)) for base in made.__mro__[:-1]
                ):
                    missing.append(f"{module.__name__}.{name}.{member}")
    assert missing == []


def sections_of(text: str) -> dict[str, list[str]]:
    """The entries of each Google section of a docstring: the names before the colons."""
    found: dict[str, list[str]] = {}
    entries: list[str] | None = None
    for line in text.splitlines():
        if header := re.fullmatch(r"(Args|Returns|Yields|Raises|Attributes):", line):
            entries = found.setdefault(header[1], [])
        elif line and not line.startswith(" "):
            entries = None
        elif entries is not None and (entry := re.match(r"  (\S[^:]*?):(\s|$)", line)):
            entries += [name.strip().lstrip("*") for name in entry[1].split(",")]
    return found


def test_sections_have_the_arguments_of_the_signature_and_the_errors_that_are_raised() -> None:
    seen = 0
    for name, thing in public_things():
        function = thing.__init__ if inspect.isclass(thing) else function_of(thing)
        if function is None:
            continue
        sections = sections_of(inspect.cleandoc(thing.__doc__ or ""))
        if "Args" in sections:
            parameters = [each for each in inspect.signature(function).parameters if each != "self"]
            assert sections["Args"] == [each for each in parameters if each != "cls"], name
            seen += 1
        if "Raises" in sections and not inspect.isclass(thing):
            raised = re.findall(r"^\s+raise (\w*Error)\b", inspect.getsource(function), re.M)
            assert set(raised) <= set(sections["Raises"]), name
    assert seen > 100


@pytest.mark.parametrize("module", PROMISED)
def test_every_promised_name_is_there(module: str) -> None:
    for name in PROMISED[module].split():
        thing: Any = importlib.import_module(module)
        for part in name.split("."):
            assert hasattr(thing, part), name
            thing = getattr(thing, part)


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
