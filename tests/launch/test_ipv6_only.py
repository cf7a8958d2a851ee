"""A machine whose only loopback address is ::1, in a network namespace of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dm_env_rpc_client.system import children
from tests.support.programs import ROOT
from tests.support.stopwatch import patience

# The hosts file of such a machine, for the programs in the namespace alone.
_ENTER = """
set -e
mount --make-rprivate /
printf '::1 localhost\\n' > {hosts}
mount --bind {hosts} /etc/hosts
ip link set lo up
ip addr del 127.0.0.1/8 dev lo
ip addr show dev lo | grep -q 'inet6 ::1/128'
"""

_SERVE = (
    f"{shlex.quote(sys.executable)} -m dm_env_rpc_client serve catch --address localhost:{{port}}"
)
_CATCH = "dm_env_rpc_client.server:Catch"

CASES = {
    "serve": """
for served in ("http2", "grpc"):
    with serve(Catch, transport=served) as server:
        assert server.address.startswith("localhost:")
        for transport in ("http2", "grpc"):
            use(server.address, transport=transport)
""",
    "command": f"""
use("process:" + {_SERVE!r})
""",
    "python": f"""
use("python:{_CATCH}")
use("process:" + sys.executable + " -m dm_env_rpc_client.server {_CATCH} localhost:{{port}}")
""",
}

_PROGRAM = """
import sys
from dm_env_rpc_client import make
from dm_env_rpc_client.server import Catch, serve

def use(address, **options):
    with make(address, **options) as env:
        assert env.reset().first()
        assert env.step({{"paddle": 1}}).mid()

if __name__ == "__main__":
    {case}
"""


def _in_namespace(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    entered = _ENTER.format(hosts=shlex.quote(str(tmp_path / "hosts")))
    return subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", f"{entered}\n{script}"],
        cwd=ROOT,
        env=children.variables({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
    )


@pytest.fixture
def _namespace(tmp_path: Path) -> None:
    try:
        tried = _in_namespace("true", tmp_path)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1)")
    if tried.returncode:
        pytest.skip(f"no network namespace: {tried.stderr.strip()}")


@pytest.mark.usefixtures("_namespace")
@pytest.mark.parametrize(
    "case",
    ["serve", "command", pytest.param("python", marks=pytest.mark.slow)],
)
def test_all_works_without_an_ipv4_loopback_address(case: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(case=CASES[case].strip().replace("\n", "\n    ")))
    python = shlex.join([sys.executable, str(program)])
    finished = _in_namespace(f"exec {python}", tmp_path)
    assert finished.returncode == 0, finished.stderr
