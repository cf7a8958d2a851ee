"""Servers in containers, by a stand-in for `docker` and its daemon: `docker_daemon.py`."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dm_env_rpc_client import LaunchError, Restart, SpecError, make
from dm_env_rpc_client.launch import Launch, from_docker
from tests.launch.docker_daemon import IMAGE, Daemon
from tests.launch.processes import ROOT, command_of, is_alive
from tests.support.scripted import ServerProcess, settles
from tests.support.stopwatch import time_limit

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")


def test_a_container_serves_and_is_removed(daemon: Daemon) -> None:
    variables = {"COLOUR": "red", "PATH": "/own", "DOCKER_HOST": "own", "LINES": "a\nb"}
    with from_docker("owner/echo", ["--at", "{port}"], env=variables, options=["--memory=1g"]) as (
        launch
    ):
        (container,) = daemon.containers.values()
        assert isinstance(launch, Launch)
        assert "docker:owner/echo" in repr(launch)
        assert launch.address == f"127.0.0.1:{container.port}"
        with make(launch.address) as env:
            env.reset()
            assert env.step({"value": 7}).observation["value"] == 7
        assert container.options.label == f"dm-env-rpc-client={os.getpid()}"
        assert container.options.memory == "1g"
        assert container.variables == {"PYTHONUNBUFFERED": "1", **variables}
        assert settles(lambda: "colour: red" in launch.logs())
        assert "arguments: --at 50051" in launch.logs()
        # Other users can read command lines, and variables may be secret.
        assert b"container" in command_of(launch.pid)
        assert b"red" not in command_of(launch.pid)
        assert "red" not in str(daemon.seen)
    assert daemon.containers == {}
    assert container.has_ended.is_set()
    assert "colour: red" in launch.logs()


def test_one_line(daemon: Daemon) -> None:
    with make("docker:owner/echo", {"length": 1}, restart=Restart()) as env:
        env.reset()
        assert env.step({"value": 7}).last()
        env.reset()
        daemon.created[0].kill()
        assert env.step({"value": 8}).last()
        assert env.step({"value": 9}).first()
        assert (len(daemon.created), env.restarts) == (2, 1)


def test_an_image_is_pulled_with_progress(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.remote["other/echo:1.2"] = ["80/tcp", "53/udp"]
    told: list[tuple[str, int, int]] = []
    with (
        caplog.at_level(logging.INFO, "dm_env_rpc_client"),
        from_docker("other/echo:1.2", progress=lambda *each: told.append(each)),
    ):
        pass
    told_of_layers = [each[1:] for each in told if each[0].startswith("Pull")]
    assert told_of_layers == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    assert "pulling the image other/echo:1.2" in caplog.text


def test_one_that_ends_is_told_with_its_last_lines(daemon: Daemon) -> None:
    with pytest.raises(LaunchError, match=r"exit code 3: docker:owner/echo fail") as caught:
        from_docker("owner/echo", ["fail"])
    assert "arguments: fail" in caught.value.logs


@pytest.mark.parametrize(
    ("image", "attribute", "value", "text"),
    [
        ("owner/echo", "refusal", "no such runtime: fast", "no such runtime: fast"),
        # So that no port is mapped.
        ("owner/echo", "maps", False, "--network is among the options"),
        ("nobody/nothing", "maps", True, "no image nobody/nothing:latest anywhere"),
    ],
)
def test_what_the_daemon_does_not_do_is_told_at_once(
    daemon: Daemon, image: str, attribute: str, value: object, text: str
) -> None:
    setattr(daemon, attribute, value)
    with time_limit(20), pytest.raises(LaunchError, match=text):
        from_docker(image)


def test_options_that_are_set_here(daemon: Daemon) -> None:
    with pytest.raises(SpecError, match="sets --name, --publish, -e itself"):
        from_docker("owner/echo", options=["--publish", "80:80", "-eA=B", "--name=mine"])


@pytest.mark.parametrize("ports", [[], ["80/tcp", "81/tcp"]])
def test_the_port_has_to_be_known(daemon: Daemon, ports: list[str]) -> None:
    daemon.images[IMAGE] = ports
    with pytest.raises(SpecError, match="to expose exactly one TCP port"):
        from_docker("owner/echo")
    with from_docker("owner/echo", port=80) as launch:
        assert launch.is_running


def test_no_docker_is_told(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(LaunchError, match="for lack of Docker: Cannot connect to the Docker"):
        from_docker("owner/echo")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="for lack of Docker: there is no program docker in PATH"):
        from_docker("owner/echo")


CLIENT = """
import time
from dm_env_rpc_client.launch import from_docker
launch = from_docker("owner/echo")
print(launch.pid, flush=True)
time.sleep(300)  # Until it is killed.
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_client_that_ends_takes_its_container_along(
    daemon: Daemon, number: signal.Signals
) -> None:
    with ServerProcess(CLIENT) as process:
        keeper = int(process.address)
        assert len(daemon.containers) == 1
        process.signal(number)
        assert settles(lambda: not daemon.containers, 20)
        assert settles(lambda: not is_alive(keeper), 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_watches_over_a_container_is_killed(daemon: Daemon, number: signal.Signals) -> None:
    with from_docker("owner/echo") as launch:
        os.kill(launch.pid, number)
        assert settles(lambda: not daemon.containers and not launch.is_running, 20)
        with pytest.raises(LaunchError, match="the server"):
            launch.check_running()


def test_a_client_that_is_killed_while_the_container_is_created(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.slow = 1.0
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with subprocess.Popen([sys.executable, "-c", CLIENT], cwd=ROOT) as process:
        was_asked = daemon.is_asked.wait(20)
        process.kill()
    assert was_asked
    assert settles(lambda: daemon.created != [], 20)
    assert settles(lambda: not daemon.containers, 20)
    assert settles(lambda: not list(folder.iterdir()), 20)
