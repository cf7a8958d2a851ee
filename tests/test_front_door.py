"""What people see first: the names, completion, the version, and Gymnasium's registration."""

from __future__ import annotations

import importlib.metadata
import site
from pathlib import Path

import pytest

import dm_env_rpc_client
from tests.support.programs import run_python


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    names = run_python("-c", "import dm_env_rpc_client as d; print(*dir(d))").stdout.split()
    assert {"make", "serve", "connect", "Connection", "SpecManager", "errors"} <= set(names)
    assert {"importlib", "sys", "lazy_loader", "annotations"} & set(names) == set()
    assert [name for name in names if name.startswith("_")] == []
    assert names == sorted(names)


def test_every_public_name_can_be_imported() -> None:
    for name in dir(dm_env_rpc_client):
        assert getattr(dm_env_rpc_client, name) is not None
    with pytest.raises(AttributeError, match="conect"):
        dm_env_rpc_client.conect  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert dm_env_rpc_client.__version__ == importlib.metadata.version("dm-env-rpc-client")


def test_a_checkout_that_is_not_installed_works(tmp_path: Path) -> None:
    for path in map(Path, site.getsitepackages()):
        for entry in path.glob("*"):
            if not entry.name.startswith(("dm_env_rpc_client", "_dm_env_rpc", "__editable__")):
                tmp_path.joinpath(entry.name).symlink_to(entry)
    program = """
import importlib.metadata, sys
try:
    importlib.metadata.version("dm-env-rpc-client")
except importlib.metadata.PackageNotFoundError:
    from dm_env_rpc_client import make
    from dm_env_rpc_client.server import Catch, serve
    with serve(Catch) as server, make(server.address, record=sys.argv[1]) as env:
        print(repr(env.reset().step_type))
"""
    checkout = str(Path(dm_env_rpc_client.__file__).parents[1])
    places = {"PYTHONPATH": f"{checkout}:{tmp_path}"}
    recording = str(tmp_path / "played.mcap")
    arguments = "-S", "-c", program, recording
    finished = run_python(*arguments, environment=places, folder=tmp_path)
    assert "FIRST" in finished.stdout


def test_other_systems_are_told_which_are_supported() -> None:
    program = "import sys; sys.platform = 'win32'; import dm_env_rpc_client"
    finished = run_python("-c", program, code=1)
    assert finished.stderr.splitlines()[-1].startswith(
        f"ImportError: dm_env_rpc_client {dm_env_rpc_client.__version__} runs on Linux and macOS; "
        "this system is 'win32'"
    )
