"""Row 29 of the reliability scorecard: libraries that break the interface.

What a library can do wrong without harm to the process is an error in the process. What ends the
process ends a child, and the parent lives. Episodes run under AddressSanitizer and UBSan, too: the
complete library frees whatever it returned at the next call, and Python takes its memory from
malloc, so that a read that comes too late, or a write beyond what is passed, is an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

import dm_env_rpc_client
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment, environment_factory
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    LibraryError,
    ProtocolError,
)
from dm_env_rpc_client.server import serve
from tests.bridges.env_c_api.compiling import SANITIZE, compile_library
from tests.bridges.env_c_api.conftest import MakeEnvironment
from tests.reliability.recording import Seen
from tests.support.groups import need, skip
from tests.support.programs import run_python
from tests.support.stopwatch import Stopwatch, patience

pytestmark = pytest.mark.row(29)

WHEN_OPENED = {
    "fails": "connect function failed with code 5",
    "null_function": "leaves advance null",
    "all_null": "leaves setting, init, .* null",
    "null_context": "its context is null",
    "larger_struct": "compiled with another version",
    "null_name": "observation_name of 0 is null",
    "empty_name": "an action has an empty name",
    "latin_name": "action_discrete_name of 0 is not valid UTF-8",
    "same_names": "2 actions are named 'same'",
    "same_observations": "observations are named 'same'",
    "endless_name": "event_type_name of 0 does not end within 4096 bytes",
    "null_environment_name": "environment_name is null",
    "negative_count": "observation_count is -1",
    "huge_count": "action_discrete_count is 2147483647; expected 0 to 10000",
    "nan_bounds": "action 'throttle' has the bounds nan to nan",
    "no_bounds": "action 'turn.horizontal' has the bounds 1 to 0",
    "inverted_bounds": "action 'turn.horizontal' has the bounds 5 to -5",
    "no_spec": "the library did not fill in observation_spec of 0",
    "null_shape": "observation_spec of 0 has 3 dimensions, but its shape is null",
    "too_many_dims": "observation_spec of 0 has 33 dimensions; expected 0 to 32",
    "negative_dims": "observation_spec of 0 has -2 dimensions",
    "negative_size": r"observation_spec of 0: shape \[3, -5\] has a negative size",
    "overflow": "observation_spec of 0: shape .* takes .* at most 134217728 are allowed",
    "overflow_hidden": "observation_spec of 0: shape .* takes",
    "wraps_to_zero": "observation_spec of 0: shape .* takes 147573952589676412928 bytes",
    "over_budget": "observation_spec of 0: shape .* takes 4294967296 bytes",
    "unknown_type": "observation_spec of 0 has type 77, which does not exist in version",
    "text_of_two_dims": "observation_spec of 0: a string must have 1 dimension, got 2",
}

WHEN_STARTED = {
    "endless_eagain": r"EAGAIN 3 times; its last message: never ready",
    "null_message": r"start failed with code 3: \(no message: error_message returned null",
    "no_observation": "the library did not fill in observation 'camera'",
    "null_payload": r"observation 'camera' has shape \[72, 96, 3\], but its payload is null",
    "other_shape": r"observation 'camera' is uint8 of shape \(72, 96, 2\); expected BYTES of",
    "other_type": r"observation 'camera' is float64 of shape \(1, 1, 1\); expected BYTES",
    "dynamic_dims": "observation 'camera' has -1 dimensions",
    "many_dims": "observation 'camera' has 33 dimensions",
    "negative_length": r"observation 'camera': shape \[72, 96, -3\] has a negative size",
    "large_camera": "observation 'camera': shape .* takes 17179869176 bytes",
    "wrong_row": r"observation 'camera' is uint8 of shape \(2, 9\); .* by observation_spec",
    "latin_text": "observation 'camera' is not valid UTF-8",
    "negative_events": "event_count is -1",
    "huge_events": "event_count is 2147483647",
    "no_event": "event 0 has id -2147483648; expected at least 0 and less than 2, the",
    "unknown_event": "event 0 has id 2; expected at least 0 and less than 2, the number of",
    "null_event_observations": "event 0 has 3 observations, but the pointer",
    "negative_event_observations": "event 0 has -3 observations",
    "large_events": "event 0: observation 1 takes 134217728 bytes; together with the earlier",
}

WHEN_STEPPED = {
    "unknown_status": "advance returned status 42",
    "no_reward": "advance: the reward is NaN or was not stored",
    "nan_reward": "advance: the reward is NaN",
    "speechless_error": r"advance failed with code 2: \(no message\)",
}

WHEN_KILLED = {
    "aborts": "SIGABRT",
    "exits": "it exited with code 3",
    "kills_itself": "SIGKILL",
    "overflows": "SIGSEGV",
    "closes_all": "",
}

WHEN_LED_ASTRAY = {
    "crashing_init": "died in open: killed by SIGSEGV",
    "wild_name": "died in open: killed by SIGSEGV",
    "wild_payload": "died in start: killed by SIGSEGV",
    "wild_event": "died in start: killed by SIGSEGV",
    "wild_function": "died in open: killed by SIGSEGV",
}


def step_once(environment: EnvCApiEnvironment) -> None:
    environment.reset()
    environment.step({})


@pytest.mark.parametrize("library", WHEN_OPENED)
def test_a_library_that_cannot_be_opened(make: MakeEnvironment, version: str, library: str) -> None:
    with pytest.raises((ProtocolError, LibraryError), match=WHEN_OPENED[library]):
        make(f"connect_{library}", version=version)


@pytest.mark.parametrize("library", WHEN_STARTED)
def test_a_library_that_cannot_be_started(make: MakeEnvironment, library: str) -> None:
    environment = make(f"connect_{library}", start_attempts=3)
    with pytest.raises((ProtocolError, LibraryError), match=WHEN_STARTED[library]):
        environment.reset()
    with pytest.raises(DmEnvRpcClientError, match="call reset to begin another"):
        environment.step({})


@pytest.mark.parametrize("library", WHEN_STEPPED)
def test_a_library_that_cannot_be_stepped(make: MakeEnvironment, library: str) -> None:
    environment = make(f"connect_{library}")
    environment.reset()
    with pytest.raises((ProtocolError, LibraryError), match=WHEN_STEPPED[library]):
        environment.step({})
    assert environment.reset().first()


@pytest.mark.parametrize("library", ["null_name", "overflow", "endless_eagain", "no_reward"])
def test_errors_of_a_child_process_are_the_same(make: MakeEnvironment, library: str) -> None:
    expected = {**WHEN_OPENED, **WHEN_STARTED, **WHEN_STEPPED}[library]
    with pytest.raises((ProtocolError, LibraryError), match=expected):
        step_once(make(f"connect_{library}", isolated=True, start_attempts=3))


def test_a_library_of_another_version_is_noticed() -> None:
    with pytest.raises(ProtocolError, match=r"wrote more than the 29 functions of version 2\.2"):
        EnvCApiEnvironment(compile_library("complete", "1.4"), "complete_connect", version="2.2")
    with pytest.raises(ProtocolError, match=r"leaves act_text, advance null, but version 1\.4"):
        EnvCApiEnvironment(compile_library("complete", "2.2"), "complete_connect", version="1.4")


def test_types_of_a_later_version_are_noticed() -> None:
    with pytest.raises(ProtocolError, match=r"has type 3, which does not exist in version 2\.0"):
        EnvCApiEnvironment(compile_library("complete", "2.1"), "complete_connect", version="2.0")


@pytest.mark.parametrize(
    ("library", "call", "message"),
    [
        ("unknown_result", "write", "write_property of 'speed' returned 9"),
        ("null_value", "read", "the value of property 'speed' is null"),
        ("invalid_read", "read", "returned InvalidArgument, which only write_property may return"),
        ("null_key", "list", "a key is null"),
        ("odd_attributes", "list", "property 'odd' has attributes 64"),
        ("flood", "list", "the property has more than 10000 children"),
        ("endless_tree", "tree", "more than 64 levels of properties"),
    ],
)
def test_a_library_with_broken_properties(
    make: MakeEnvironment, library: str, call: str, message: str, isolated: bool
) -> None:
    environment = make(f"connect_{library}", isolated=isolated)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: environment.read_property("speed"),
        "write": lambda: environment.write_property("speed", "1"),
        "list": environment.list_properties,
        "tree": lambda: environment.list_properties("x", recursive=True),
    }
    with pytest.raises(ProtocolError, match=message):
        calls[call]()
    assert environment.reset().first()


def test_callbacks_with_other_userdata_are_ignored(make: MakeEnvironment) -> None:
    properties = make("connect_other_userdata").list_properties()
    assert properties == {"found": PropertyAttributes.READABLE}


def test_callbacks_after_the_call_are_ignored(make: MakeEnvironment) -> None:
    first = make("connect_late_callback")
    assert first.list_properties() == {}
    first.close()
    assert make("connect_late_callback").list_properties() == {}


def test_callbacks_from_another_thread_are_taken(make: MakeEnvironment) -> None:
    assert make("connect_threaded").list_properties() == {"threaded": PropertyAttributes.READABLE}


@pytest.mark.parametrize("library", WHEN_KILLED)
def test_a_library_that_ends_its_process(make: MakeEnvironment, library: str) -> None:
    environment = make(f"connect_{library}", isolated=True)
    with pytest.raises(ConnectionLostError, match=f"died in advance: .*{WHEN_KILLED[library]}"):
        step_once(environment)
    with pytest.raises(ConnectionLostError, match="has ended; make a new environment") as later:
        environment.reset()
    assert "died in advance" in str(later.value.__cause__)


@pytest.mark.parametrize("library", WHEN_LED_ASTRAY)
def test_a_library_whose_pointers_lead_nowhere(make: MakeEnvironment, library: str) -> None:
    with pytest.raises(ConnectionLostError, match=WHEN_LED_ASTRAY[library]):
        step_once(make(f"connect_{library}", isolated=True, settings={"width": 96}))


def test_a_library_that_hangs(make: MakeEnvironment) -> None:
    environment = make("connect_hangs", isolated=True, request_timeout=3.0)
    environment.reset()
    begin = Stopwatch()
    with pytest.raises(DeadlineExceededError, match=r"did not return from advance within 3\.0"):
        environment.step({})
    assert begin.seconds >= 3.0
    assert begin.within(5.0)
    with pytest.raises(ConnectionLostError):
        environment.reset()


def test_a_library_that_writes_into_the_pipe(make: MakeEnvironment) -> None:
    environment = make("connect_scribbles", isolated=True)
    with pytest.raises(ProtocolError, match=r"a message has .* bytes of JSON"):
        step_once(environment)
    with pytest.raises(ConnectionLostError):
        environment.reset()


def test_a_library_that_dies_when_it_is_released(make: MakeEnvironment) -> None:
    environment = make("connect_crashing_release", isolated=True)
    environment.reset()
    runner = environment._runner
    assert isinstance(runner, ProcessRunner)
    environment.close()
    assert runner._process.returncode == -signal.SIGABRT
    environment.close()


def test_a_served_library_that_dies_takes_one_world_with_it() -> None:
    hostile = environment_factory(compile_library("hostile", "1.4"), "connect_aborts")
    complete = environment_factory(compile_library("complete", "1.4"), "complete_connect")
    with serve({"hostile": hostile, "complete": complete}) as server:
        with dm_env_rpc_client.make(server.address, {"environment": "complete"}) as good:
            good.reset()
            with dm_env_rpc_client.make(server.address, {"environment": "hostile"}) as bad:
                bad.reset()
                action = dict.fromkeys(("jump", "throttle"), 0)
                action |= {"turn.horizontal": 0, "say": ""}  # type: ignore[dict-item]
                with pytest.raises(dm_env_rpc_client.DmEnvRpcError, match="killed by SIGABRT"):
                    bad.step(action)
            assert good.step(action).mid()
        assert server.world_count == 0


def test_there_are_at_least_twenty_hostile_libraries(seen: Seen) -> None:
    tables = (WHEN_OPENED, WHEN_STARTED, WHEN_STEPPED, WHEN_KILLED, WHEN_LED_ASTRAY)
    count = sum(map(len, tables))
    seen(hostile_libraries=count)
    assert count >= 20


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
