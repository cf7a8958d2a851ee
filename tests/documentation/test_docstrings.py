"""Public docstrings say everything, and the promised names are there."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
