"""The generated modules: what generates them, whose descriptors they share, where they load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1.extensions import properties_pb2 as reference_properties_pb2

from dm_env_rpc_client import dm_env_rpc_pb2, properties_pb2

Install = Callable[..., str]

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "dm_env_rpc_client" / "_proto"

SMOKE = """
import numpy as np, google.protobuf, grpc
import dm_env_rpc_client as client
from dm_env_rpc_client.server import Catch
for dtype in ("f4", "f8", "i1", "i4", "i8", "u1", "u4", "u8", "?"):
    array = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    tensor = client.pack_tensor(array)
    unpacked = client.unpack_tensor(type(tensor).FromString(tensor.SerializeToString()))
    assert unpacked.dtype == dtype and np.array_equal(unpacked, array), dtype
    assert unpacked.flags.writeable
assert client.unpack_tensor(client.pack_tensor("text")) == "text"
spec = client.dm_env_spec_to_tensor_spec(Catch().action_spec()["paddle"])
assert client.tensor_spec_to_dm_env_spec(spec).num_values == 3
print(google.protobuf.__version__)
"""


def run_python(program: str, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


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
    assert run_python(order + check) == "same"


@pytest.fixture(scope="module")
def pip_install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Installs into a folder of its own, to be put before everything else."""

    def install(*requirements: str) -> str:
        target = tmp_path_factory.mktemp("packages")
        finished = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), *requirements],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if finished.returncode != 0:
            pytest.skip(f"pip cannot install {requirements}: {finished.stderr[-300:]}")
        return str(target)

    return install


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("requirement", "expected"),
    [("protobuf==4.25.1", "4.25.1"), ("protobuf>=4.25.1,<9", "")],
    ids=["lowest", "highest"],
)
def test_the_package_works_on_the_lowest_and_the_highest_protobuf(
    pip_install: Install, requirement: str, expected: str
) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert '"protobuf>=4.25.1,<9"' in pyproject, "the versions below are those of pyproject"
    packages = pip_install(requirement, "googleapis-common-protos")
    version = run_python(SMOKE, PYTHONPATH=packages)
    print(f"protobuf {version}")
    assert version.startswith(expected)


@pytest.mark.timeout(400)
def test_regeneration_changes_nothing(pip_install: Install, tmp_path: Path) -> None:
    if sys.version_info >= (3, 13):
        pytest.skip("grpcio-tools 1.62.3 has no wheel for this Python")
    packages = pip_install("grpcio-tools==1.62.3", "setuptools<81", "googleapis-common-protos")
    generated = tmp_path / "generated"
    finished = subprocess.run(
        [sys.executable, str(ROOT / "protos" / "generate.py"), str(generated)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": packages},
    )
    assert finished.returncode == 0, finished.stderr
    for path in sorted(generated.iterdir()):
        assert path.read_text() == (GENERATED / path.name).read_text(), path.name
    names = {path.name for path in GENERATED.iterdir() if path.suffix in (".py", ".pyi")}
    assert names == {path.name for path in generated.iterdir()} | {"__init__.py"}
