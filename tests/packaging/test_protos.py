"""The generated modules: what generates them, and whose descriptors they share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1.extensions import properties_pb2 as reference_properties_pb2

from dm_env_rpc_client import dm_env_rpc_pb2, properties_pb2
from tests.support.programs import ROOT, run_python
from tests.support.stopwatch import patience

GENERATED = ROOT / "dm_env_rpc_client" / "_proto"
BY_HAND = {"__init__.py", "dm_env_rpc_pb2_grpc.py"}


def test_descriptors_equal_those_of_the_reference() -> None:
    for ours, theirs in [
        (dm_env_rpc_pb2, reference_pb2),
        (properties_pb2, reference_properties_pb2),
    ]:
        assert ours.DESCRIPTOR.serialized_pb == theirs.DESCRIPTOR.serialized_pb


OURS = "from dm_env_rpc_client import dm_env_rpc_pb2 as a, properties_pb2 as c;"
THEIRS = (
    "from dm_env_rpc.v1 import dm_env_rpc_pb2 as b;"
    "from dm_env_rpc.v1.extensions import properties_pb2 as d;"
)


@pytest.mark.parametrize(
    "order", [OURS + THEIRS, THEIRS + OURS], ids=["ours first", "theirs first"]
)
def test_message_classes_are_the_references_in_either_import_order(order: str) -> None:
    check = (
        "names = list(a.DESCRIPTOR.message_types_by_name);"
        "assert len(names) == 19, names;"
        "assert all(getattr(a, n) is getattr(b, n) for n in names);"
        "assert c.PropertySpec is d.PropertySpec; print('same')"
    )
    assert run_python("-c", order + check).stdout == "same\n"


def install(folder: Path, *requirements: str) -> None:
    """Installs into a folder of its own, to be put before everything else."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder))
    finished = subprocess.run(
        [*pip, *requirements], capture_output=True, text=True, timeout=patience(300), check=False
    )
    if finished.returncode != 0:
        pytest.skip(f"pip cannot install {requirements}: {finished.stderr[-300:]}")


@pytest.mark.timeout(400)
def test_regeneration_changes_nothing(tmp_path: Path) -> None:
    if sys.version_info >= (3, 13):
        pytest.skip("grpcio-tools 1.62.3 has no wheel for this Python")
    packages = tmp_path / "packages"
    install(packages, "grpcio-tools==1.62.3", "setuptools<81", "googleapis-common-protos==1.62.0")
    generated = tmp_path / "generated"
    finished = subprocess.run(
        [sys.executable, str(ROOT / "protos" / "generate.py"), str(generated)],
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
        env={**os.environ, "PYTHONPATH": str(packages)},
    )
    assert finished.returncode == 0, finished.stderr
    for path in sorted(generated.iterdir()):
        assert path.read_text() == (GENERATED / path.name).read_text(), path.name
    names = {path.name for path in GENERATED.iterdir() if path.suffix in (".py", ".pyi")}
    assert names == {path.name for path in generated.iterdir()} | BY_HAND
