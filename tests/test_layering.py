from __future__ import annotations

import ast
import functools

import pytest

from tests import rooms
from tests.rooms import NAME, PACKAGE, imports, modules
from tests.support.programs import run_python

# Third-party packages and the only places that may import them.
ONLY_IN = {
    "grpc": ["transports.", "testing.scripted_server", "_proto.dm_env_rpc_pb2_grpc"],
    "socket": [
        "transports.",
        "system.message_pipe",
        "testing.fault_proxy",
        "launch.ports",
        "bridges.gym_socket.tcp",
        "launch.standalone.dm_env_rpc_server",
    ],
    "pytest": ["testing.pytest_plugin", "compliance.conftest", "compliance.test_all"],
    "typer": ["cli."],
    "rich": ["cli."],
    "pygame": ["cli.play"],
    "gymnasium": [
        "gymnasium",
        "adaptors.gymnasium.",
        "adaptors.pettingzoo.",
        "adaptors.sb3",
        "adaptors.minari",
        "bridges.gym_socket.",
        "cli.play",
    ],
    "mcap": ["recording."],
    "minari": ["adaptors.minari"],
    "pettingzoo": ["adaptors.pettingzoo."],
    "ray": ["distributed."],
    "stable_baselines3": ["adaptors.sb3"],
    "grpc_reflection": ["transports.services"],
    "cffi": ["bridges."],
    "ipywidgets": ["notebook."],
    "anywidget": ["notebook.keyboard"],
    "traitlets": ["notebook.keyboard"],
    "PIL": ["tensors.displays.images"],
    "matplotlib": ["tensors.displays.images"],
}


ALLOWED = [(room, other) for room, others in rooms.MAY_IMPORT.items() for other in others]


def is_in(module: str, place: str) -> bool:
    if place.endswith("."):
        return module == place[:-1] or module.startswith(place)
    return module == place


def test_the_arrows_between_rooms_are_those_of_the_table() -> None:
    arrows = rooms.arrows()
    assert {arrow: places for arrow, places in arrows.items() if arrow not in ALLOWED} == {}
    assert [arrow for arrow in ALLOWED if arrow not in arrows] == []


def test_the_table_has_every_room_and_arrows_point_downwards() -> None:
    order = list(rooms.MAY_IMPORT)
    assert set(order) == {rooms.room(name) for name, _ in modules()}
    assert [arrow for arrow in ALLOWED if order.index(arrow[1]) <= order.index(arrow[0])] == []


def test_no_files_import_one_another_in_a_circle() -> None:
    assert rooms.circles() == []


def test_every_room_says_what_it_is_for() -> None:
    silent = [
        name
        for name, tree in modules()
        if name
        and (PACKAGE / name.replace(".", "/") / "__init__.py").exists()
        and len((ast.get_docstring(tree) or "").split()) < 8
    ]
    assert silent == []


@functools.cache
def packages() -> set[tuple[str, str]]:
    """Each module with each package that it imports."""
    return {(name, full.split(".")[0]) for name, tree in modules() for full in imports(tree)}


@pytest.mark.parametrize("package", ONLY_IN)
def test_some_packages_are_imported_in_one_place_only(package: str) -> None:
    wrong = [
        name
        for name, imported in packages()
        if imported == package and not any(is_in(name, place) for place in ONLY_IN[package])
    ]
    assert wrong == []


# Of the transports, from the bottom up. Folders side by side do not know one another.
LAYERS = [
    ["transports.net."],
    ["transports.streams", "transports.server_streams", "transports.endpoint"],
    ["transports.services"],
    ["transports.http2.protocol."],
    ["transports.http2.client.", "transports.http2.server.", "transports.grpc."],
    ["transports.opening", "transports.listeners", "transports.health_check"],
]


def layer_of(module: str) -> tuple[int, str] | None:
    places = [(number, place) for number, layer in enumerate(LAYERS) for place in layer]
    return next((each for each in places if is_in(module, each[1])), None)


def test_imports_of_the_transports_go_downwards() -> None:
    wrong, seen = [], 0
    for name, tree in modules():
        own = layer_of(name)
        assert own or name in ("transports", "transports.http2") or "transports." not in name
        for imported in imports(tree, for_types=True):
            other = layer_of(rooms.own_module(imported) or "")
            if own is None or other is None:
                continue
            seen += 1
            is_beside = other[0] == own[0] and other[1] != own[1] and own[1].endswith(".")
            if other[0] > own[0] or is_beside:
                wrong.append(f"{name} -> {imported}")
    assert wrong == []
    assert seen > 100


def test_the_packages_own_file_holds_no_logic() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert {type(node) for node in tree.body} == {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign}


def test_importing_the_pytest_plugin_imports_nothing_heavy() -> None:
    program = "import sys, dm_env_rpc_client.testing.pytest_plugin; print(*sys.modules)"
    loaded = run_python("-c", program).stdout.split()
    assert {"grpc", "numpy", "google.protobuf", "dm_env"} & set(loaded) == set()
    ours = {name for name in loaded if name.startswith(NAME)}
    testing = "testing", "testing.pytest_plugin", "compliance", "compliance.options"
    light = "version", "plain_text", "system", "system.keywords"
    assert ours == {NAME, *(f"{NAME}.{module}" for module in (*testing, *light))}


def test_importing_the_command_imports_of_the_server_its_options_alone() -> None:
    program = "import sys, dm_env_rpc_client.cli.app; print(*sys.modules)"
    loaded = run_python("-c", program).stdout.split()
    assert {"grpc", "numpy", "dm_env", "pygame"} & set(loaded) == set()
    found = {name for name in loaded if name.startswith((f"{NAME}.server", f"{NAME}.transports"))}
    assert found == {f"{NAME}.server", f"{NAME}.server.options"}


def test_importing_the_package_imports_nothing_optional() -> None:
    program = "import sys, dm_env_rpc_client; print(*sorted(sys.modules))"
    loaded = run_python("-c", program).stdout.split()
    optional = {"typer", "rich", "gymnasium", "cffi", "pytest", "ray", "IPython", "matplotlib"}
    optional |= {"ipywidgets", "pettingzoo", "PIL", "mcap", "minari", "grpc_reflection"}
    assert optional & set(loaded) == set()
