"""A thousand episodes of the complete library under AddressSanitizer and UBSan.

The library frees whatever it returned at the next call, so a read that comes too late is
an error here; and Python takes its memory from malloc, so a write beyond the structs and
arrays that the bridge passes is one too.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.bridges.env_c_api.compiling import SANITIZE, compile_library
from tests.bridges.env_c_api.test_hostile import WHEN_OPENED, WHEN_STARTED, WHEN_STEPPED
from tests.support.groups import need, skip
from tests.support.programs import run_python
from tests.support.stopwatch import patience

EPISODES = 1000
QUICK_EPISODES = 20

PROGRAM = """
import sys
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
path, version, episodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
per_context = 10
ends = {"terminated": 0, "interrupted": 0}
for context in range(episodes // per_context):
    end = sorted(ends)[context % 2]
    env = EnvCApiEnvironment(
        path,
        "complete_connect_with_params",
        launch_params=["title", end],
        version=version,
        settings={"length": 4, "width": 8, "eagain": context % 3},
        events_observation="events",
    )
    for episode in range(per_context):
        timestep = env.reset()
        while not timestep.last():
            timestep = env.step({"jump": 1, "throttle": 0.5, "say": "x" * episode})
            env.write_property("speed", str(episode))
            env.read_property("speed")
        ends[end] += 1
        env.list_properties(recursive=True)
    assert env.read_property("violations") == "0"
    env.close()
print(sum(ends.values()), "episodes")
"""

HOSTILE_PROGRAM = """
import sys
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.errors import DmEnvRpcClientError
path, *libraries = sys.argv[1:]
refused = 0
for library in libraries:
    try:
        env = EnvCApiEnvironment(path, f"connect_{library}", start_attempts=2)
        env.reset()
        env.step({})
    except DmEnvRpcClientError:
        refused += 1
print(refused, "refused")
"""


@pytest.fixture(scope="module")
def runtime_library() -> str:
    """The path of the sanitizer's runtime, which Python has to load first."""
    need("compiler")
    command = ["cc", "-print-file-name=libasan.so"]
    path = subprocess.check_output(command, text=True, timeout=patience(30)).strip()
    if not os.path.isabs(path):
        skip("compiler", "the C compiler has no AddressSanitizer (libasan.so)")
    return os.path.realpath(path)


def run(
    preload: str, program: str, *arguments: object, code: int = 0
) -> subprocess.CompletedProcess[str]:
    environment = {
        "LD_PRELOAD": preload,
        # What the interpreter itself keeps to its end is no leak of the bridge.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    return run_python("-c", program, *arguments, code=code, timeout=110, environment=environment)


def clean(preload: str, program: str, *arguments: object) -> str:
    """Runs a program in which the sanitizers find nothing; returns what it printed."""
    process = run(preload, program, *arguments)
    assert "Sanitizer" not in process.stderr
    assert "runtime error" not in process.stderr
    return process.stdout


@pytest.mark.parametrize(
    "episodes", [QUICK_EPISODES, pytest.param(EPISODES, marks=pytest.mark.slow)]
)
def test_episodes_are_clean(runtime_library: str, version: str, episodes: int) -> None:
    library = compile_library("complete", version, *SANITIZE)
    printed = clean(runtime_library, PROGRAM, library, version, episodes)
    assert printed == f"{episodes} episodes\n"


def test_hostile_libraries_lead_to_no_read_out_of_bounds(runtime_library: str) -> None:
    library = compile_library("hostile", "1.4", *SANITIZE)
    names = [*WHEN_OPENED, *WHEN_STARTED, *WHEN_STEPPED]
    printed = clean(runtime_library, HOSTILE_PROGRAM, library, *names)
    assert printed == f"{len(names)} refused\n"
