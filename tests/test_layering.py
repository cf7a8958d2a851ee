"""Imports point downwards only, and nothing optional is imported by the package itself."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dm_env_rpc_client

PACKAGE = Path(dm_env_rpc_client.__file__).parent
NAME = "dm_env_rpc_client"

# From the bottom up. A module may import its own layer and those below; a name ending in
# a dot is a folder. The bridges stand beside the stack and may use the pure core only.
LAYERS = [
    ["_proto."],
    ["addresses", "casting", "command_text", "displays.", "errors", "nesting", "payloads",
     "sampling", "settings", "spec_manager", "specs", "tensors", "timesteps", "variable_specs"],
    ["lifecycle", "messages", "pipeline", "step_codec"],
    ["transports."],
    ["async_connection", "connection", "exchange", "readiness"],
    ["adaptor", "async_dm_env_adaptor", "dm_env_adaptor", "extensions.", "worlds"],
    ["server.", "testing.", "compliance."],
    ["adaptors."],
    ["", "cli.", "notebook.", "pytest_plugin", "reference"],
]  # fmt: skip
BRIDGES = "bridges."

# Third-party packages and the only places that may import them.
ONLY_IN = {
    "grpc": ["transports.", "server.hosting", "testing.scripted_server"],
    "socket": [
        "transports.",
        "server.listening",
        "testing.server_process",
        "bridges.gym_socket.stream",
    ],
    "pytest": ["pytest_plugin", "testing.fixtures", "compliance.test_compliance"],
    "typer": ["cli."],
    "rich": ["cli."],
    "termios": ["cli.play", "cli.playing.keyboard"],
    "pdoc": ["reference"],
    "gymnasium": [
        "adaptors.gymnasium",
        "adaptors.space_batches",
        "adaptors.spaces",
        "adaptors.vector",
        "bridges.gym_socket.gymnasium_environment",
        "cli.sources",
    ],
    "cffi": [BRIDGES],
    "ipywidgets": ["notebook."],
    "anywidget": ["notebook.keyboard"],
    "traitlets": ["notebook.keyboard"],
    "PIL": ["displays.images"],
    "matplotlib": ["displays.images"],
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """Absolute names of all that a module imports, other than for annotations alone."""
    for_types = [
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    ]
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, place: str) -> bool:
    if place.endswith("."):
        return module == place[:-1] or module.startswith(place)
    return module == place


def layer(module: str) -> int | None:
    for level, places in enumerate(LAYERS):
        if any(is_in(module, place) for place in places):
            return level
    return None


def own_module(imported: str) -> str | None:
    """The module of this package that an imported name leads to."""
    if imported.split(".", maxsplit=1)[0] != NAME:
        return None
    parts = imported.split(".")[1:]
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").exists() or path.is_dir():
            return ".".join(parts)
        parts = parts[:-1]
    return ""


def test_every_module_has_a_layer() -> None:
    strays = [n for n, _ in modules() if layer(n) is None and not is_in(n, BRIDGES)]
    assert strays == []


def test_imports_point_downwards() -> None:
    wrong = []
    for name, tree in modules():
        for imported in imports(tree):
            target = own_module(imported)
            if target is None:
                continue
            if is_in(name, BRIDGES):
                allowed = is_in(target, BRIDGES) or layer(target) in (0, 1)
            else:
                mine, its = layer(name), layer(target)
                allowed = is_in(name, "cli.") or (
                    mine is not None and its is not None and its <= mine
                )
            if not allowed:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_some_packages_are_imported_in_one_place_only(package: str) -> None:
    wrong = [
        name
        for name, tree in modules()
        for imported in imports(tree)
        if imported.split(".")[0] == package
        and not any(is_in(name, place) for place in ONLY_IN[package])
    ]
    assert wrong == []


def test_there_is_no_logic_in_the_packages_own_file() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    kinds = {type(node) for node in tree.body}
    assert kinds == {
        ast.Expr, ast.Import, ast.ImportFrom, ast.If, ast.Assign, ast.FunctionDef
    }  # fmt: skip
    (for_types,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert {type(node) for node in for_types.body} == {ast.ImportFrom}
    assert sorted(dm_env_rpc_client.__all__) == dm_env_rpc_client.__all__


def test_what_type_checkers_see_is_what_is_imported_when_it_is_used() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (for_types,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in for_types.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        module = importlib.import_module(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")
            seen[alias.name] = getattr(module, alias.name)
    assert sorted(seen) == dm_env_rpc_client.__all__
    for name, value in seen.items():
        assert getattr(dm_env_rpc_client, name) is value
    assert sorted(dm_env_rpc_client._HOMES) == dm_env_rpc_client.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dm_env_rpc_client.nothing  # noqa: B018


def test_importing_the_pytest_plugin_imports_nothing_heavy() -> None:
    program = "import sys, dm_env_rpc_client.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert {"grpc", "numpy", "google.protobuf", "dm_env"} & set(loaded) == set()
    ours = {name for name in loaded if name.startswith(NAME)}
    assert ours == {NAME, f"{NAME}.pytest_plugin"}


def test_importing_the_package_imports_nothing_optional() -> None:
    program = "import sys, dm_env_rpc_client; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    optional = {"typer", "rich", "gymnasium", "cffi", "pytest", "ray", "IPython", "matplotlib"}
    optional |= {"ipywidgets", "PIL"}
    assert optional & set(loaded) == set()
