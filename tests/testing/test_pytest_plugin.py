"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import pytest

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.compliance import CHECKS
from dm_env_rpc_client.server import Catch, Server, Tls, serve
from dm_env_rpc_client.testing import ScriptedServer, answering
from tests.compliance import playground
from tests.compliance.broken_servers import BROKEN
from tests.support.certificates import Authority
from tests.support.serving import serving

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "dm_env_rpc")
"""The option that loads the entry point of the package alone."""

SERVE = f"{sys.executable} -m dm_env_rpc_client serve catch --address localhost:{{port}}"


server = serving(Catch)


@pytest.fixture(autouse=True)
def _without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins that are installed may order tests, seed, import or report as they like."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Runs pytest in this process: to start another takes longer than most of these runs."""
    # The plugin was imported when this process started.
    warnings = ("-W", "default", "-W", "ignore:Module already imported")
    return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *warnings, *args)


def check(pytester: pytest.Pytester, address: str, *args: str) -> pytest.RunResult:
    """Runs the compliance suite."""
    address = f"--dm-env-rpc-address={address}"
    return run(pytester, "--pyargs", "dm_env_rpc_client.compliance", address, *args)


def test_the_fixtures_lead_to_the_server_at_an_address(
    pytester: pytest.Pytester, server: Server
) -> None:
    pytester.makepyfile(
        """
        from dm_env_rpc_client import dm_env_rpc_pb2

        def test_address(dm_env_rpc_address):
            assert dm_env_rpc_address.startswith("localhost:")

        def test_connection(dm_env_rpc_connection):
            created = dm_env_rpc_connection.send(dm_env_rpc_pb2.CreateWorldRequest())
            name = created.world_name
            dm_env_rpc_connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=name))

        def test_env(dm_env_rpc_env):
            assert dm_env_rpc_env.reset().observation["board"].shape == (4, 5)
        """
    )
    result = run(pytester, f"--dm-env-rpc-address={server.address}", "--dm-env-rpc-create=rows=4")
    result.assert_outcomes(passed=3)
    assert server.world_count == 0


def test_a_server_with_tls_and_a_token_is_reached(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    own, client = authority.issue("server"), authority.issue("client")
    (tmp_path / "token").write_text("tok-1c")
    pytester.makepyfile(
        """
        from dm_env_rpc_client.compliance import CHECKS, Suite

        def test_env(dm_env_rpc_env):
            assert dm_env_rpc_env.reset().first()

        def test_a_check(dm_env_rpc_address, dm_env_rpc_compliance_options):
            suite = Suite(dm_env_rpc_address, dm_env_rpc_compliance_options)
            results = list(suite.results(CHECKS[0]))
            assert {result.outcome.value for result in results} == {"passed"}
        """
    )
    credentials = Tls(ca=authority.ca, cert=own.cert, key=own.key)
    with serve(Catch, credentials=credentials, token="tok-1c") as server:
        options = {
            "address": server.address,
            "tls-ca": authority.ca,
            "tls-cert": client.cert,
            "tls-key": client.key,
            "token-file": tmp_path / "token",
        }
        flags = [f"--dm-env-rpc-{name}={value}" for name, value in options.items()]
        run(pytester, *flags).assert_outcomes(passed=2)


def test_a_world_that_exists_is_joined(pytester: pytest.Pytester) -> None:
    joined = dm_env_rpc_pb2.JoinWorldResponse()
    script = answering(joined, dm_env_rpc_pb2.LeaveWorldResponse())
    pytester.makepyfile("def test_env(dm_env_rpc_env): assert dm_env_rpc_env.action_spec() == {}")
    with ScriptedServer(script) as scripted:
        result = run(
            pytester, f"--dm-env-rpc-address={scripted.address}", "--dm-env-rpc-world=arena"
        )
        result.assert_outcomes(passed=1)
        join, leave = scripted.requests
    assert join.join_world.world_name == "arena"
    assert leave.WhichOneof("payload") == "leave_world"


def test_a_command_is_started_once_and_stopped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pathlib

        def test_one(dm_env_rpc_env, dm_env_rpc_address):
            pathlib.Path("address").write_text(dm_env_rpc_address)
            assert dm_env_rpc_env.reset().first()

        def test_other(dm_env_rpc_env, dm_env_rpc_address):
            assert pathlib.Path("address").read_text() == dm_env_rpc_address
        """
    )
    run(pytester, f"--dm-env-rpc-command={SERVE}").assert_outcomes(passed=2)
    address = (pytester.path / "address").read_text()
    assert not listeners(address, pytester.path)


def listeners(address: str, folder: Path) -> list[int]:
    """Processes of a folder whose command line has the address, which others may get later."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended.
            has_address = address.encode() in (process / "cmdline").read_bytes()
            if has_address and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def test_what_fails_in_the_server_comes_up_in_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import dm_env_rpc_client
        from dm_env_rpc_client.server import Catch

        class Broken(Catch):
            def step(self, action):
                raise RuntimeError("the physics exploded")

        def test_it(dm_env_rpc_server):
            with dm_env_rpc_client.make(dm_env_rpc_server(Broken).address) as env:
                env.reset()
                try:
                    env.step({"paddle": 1})
                except dm_env_rpc_client.DmEnvRpcError:
                    pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*RuntimeError: the physics exploded*"])


@pytest.mark.parametrize("options", [[], ["--dm-env-rpc-address=x:1", "--dm-env-rpc-command=y"]])
def test_one_server_must_be_named(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile("def test_it(dm_env_rpc_address): pass")
    result = run(pytester, *options)
    assert result.ret != 0
    assert "--dm-env-rpc-command" in result.stdout.str() + result.stderr.str()


def test_options_of_the_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from dm_env_rpc_client.compliance import Options

        def test_it(dm_env_rpc_compliance_options):
            assert dm_env_rpc_compliance_options == Options(
                create_settings={"rows": 3},
                required_create_settings=("rows",),
                invalid_join_settings={"a": "x"},
                several_worlds=True,
                several_agents=False,
                world_name="w",
                timeout=2.0,
            )
        """
    )
    given = [
        *("create=rows=3", "required-create=rows", "invalid-join=a=x", "several-worlds=yes"),
        *("several-agents=no", "world=w", "timeout=2.0"),
    ]
    run(pytester, *(f"--dm-env-rpc-{each}" for each in given)).assert_outcomes(passed=1)


def test_the_suite_runs_under_pytest(pytester: pytest.Pytester, server: Server) -> None:
    result = check(
        pytester,
        server.address,
        "--dm-env-rpc-invalid-create=rows=-1",
        "--dm-env-rpc-several-worlds=yes",
        "--dm-env-rpc-several-agents=no",
        "-rs",
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 55
    assert outcomes["passed"] + outcomes["skipped"] == len(CHECKS)
    assert re.search("SKIPPED.*no reset settings were given", result.stdout.str())


def test_a_failure_says_what_was_sent_and_what_came_back(pytester: pytest.Pytester) -> None:
    script = answering(dm_env_rpc_pb2.StepResponse())
    with ScriptedServer(script) as scripted:
        result = check(pytester, scripted.address, "-k=leaving_while_not_joined")
    result.assert_outcomes(failed=1, deselected=len(CHECKS) - 1)
    result.stdout.fnmatch_lines(
        [
            "the_server_can_be_checked: got EnvironmentResponse*step*",
            "*clause: A world *can be joined.*'JoinWorldRequest/Response'*",
            "*sent: CreateWorldRequest*",
            "*expected: a CreateWorldResponse*",
        ]
    )


def test_the_last_lines_say_what_was_found(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the terminal is narrow, at whose width pytest cuts off its own lines."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "BUILD_NUMBER"):  # Where pytest cuts off nothing.
        monkeypatch.delenv(name, raising=False)
    name, session_class = BROKEN["is terminated twice"]
    with playground.serve(session_class) as address:
        # A check that comes across it leaves it to the test that is there for it.
        result = check(pytester, address, "-k=end_and_begin or follow_each or what_is_requested")
    result.assert_outcomes(failed=1, skipped=2, deselected=len(CHECKS) - 3)
    *_, found, header, failed, _ = [line for line in result.stdout.lines if line]
    assert found.startswith(f"failed {name}: got StepResponse {{ state: TERMINATED }}; expected a")
    assert "short test summary info" in header
    assert failed.startswith("FAILED ")
    assert failed.endswith(f"test_all.py::test[{name}] - got StepResponse {{ state...")
    assert len(failed) <= 80


# The broken server's reference package sets shapes, which NumPy 2.5 deprecates.
_SHAPES = ("-W", "ignore:Setting the shape:DeprecationWarning:dm_env_rpc.v1.tensor_utils")


@pytest.mark.parametrize(
    ("flags", "outcomes"),
    [([], {"passed": 1, "warnings": 1}), (["--dm-env-rpc-strict"], {"failed": 1})],
)
def test_a_warning_of_the_suite(
    pytester: pytest.Pytester, flags: list[str], outcomes: dict[str, int]
) -> None:
    _, session_class = BROKEN["sends errors without a message"]
    with playground.serve(session_class) as address:
        quick = "--dm-env-rpc-quiet-seconds=0.05"
        result = check(pytester, address, quick, "-k=errors_have", *_SHAPES, *flags)
    result.assert_outcomes(**outcomes, deselected=len(CHECKS) - 1)
    result.stdout.fnmatch_lines(["*errors_have_a_code_and_a_message*", "*sent: StepRequest*"])


def test_options_that_cannot_be_are_wrong_usage(pytester: pytest.Pytester, server: Server) -> None:
    policy = "--dm-env-rpc-policy=clever"
    result = check(pytester, server.address, policy, "-k=a_world_can_be_joined")
    assert result.ret != 0
    assert "unknown policy 'clever'" in result.stdout.str() + result.stderr.str()


def test_the_plugin_costs_other_peoples_runs_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "dm_env_rpc_client.testing.pytest_plugin" in sys.modules
            heavy = {"grpc", "numpy", "google.protobuf", "dm_env_rpc_client.client.connection"}
            assert heavy & set(sys.modules) == set()
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, timeout=60)
    result.assert_outcomes(passed=1)
