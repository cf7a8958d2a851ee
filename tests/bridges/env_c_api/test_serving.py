"""Libraries that are served, each world in a child process: settings, conformance, the child."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import dm_env
import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils

import dm_env_rpc_client
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment, environment_factory
from dm_env_rpc_client.bridges.env_c_api.child_process import runner as process_runner
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.library import Opening
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError, SpecError
from dm_env_rpc_client.extensions.properties import (
    PropertiesExtension,
    PropertyNotFoundError,
    PropertyPermissionError,
    PropertyValueError,
)
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.tensors.memory_limits import DEFAULT
from tests.bridges.env_c_api.compiling import compile_library
from tests.cli.commands import served
from tests.support.scripted import descriptor_count, freeze
from tests.support.stopwatch import Stopwatch

ACTION = {"turn": {"horizontal": 2}, "jump": 1, "throttle": -1.0, "say": "abc"}
Factory: TypeAlias = Callable[..., dm_env.Environment]


@pytest.fixture
def complete() -> Factory:
    return environment_factory(compile_library("complete", "1.4"), "complete_connect")


@contextlib.contextmanager
def served_properties(
    factory: Factory, **options: Any
) -> Iterator[tuple[dm_env_rpc_client.DmEnvAdaptor, PropertiesExtension]]:
    """Yields an environment of a server, and the properties of its world."""
    with (
        serve(factory, **options) as server,
        dm_env_rpc_client.connect(server.address) as connection,
        dm_env_rpc_client.create_and_join_world(connection, {}, {}).env as env,
    ):
        yield env, PropertiesExtension(connection)


def test_settings_of_the_world_are_those_of_the_library_but_for_two() -> None:
    factory = environment_factory(
        compile_library("complete", "2.2"),
        "complete_connect",
        version="2.2",
        settings={"width": 8, "height": 6, "world.title": "kept"},
        frames_per_step=2,
    )
    settings = {"width": 4, "length": 4, "seed": 11, "episode": 3}
    with serve(factory) as server, dm_env_rpc_client.make(server.address, settings) as env:
        first = env.reset()
        assert first.observation["camera"].shape == (6, 4, 3)
        np.testing.assert_array_equal(first.observation["body"]["position"], [3, 11, 0])
        step = env.step(ACTION)
        assert step.reward == 2 * (2 + 10 - 0.5 + 3)
        assert step.observation["message"] == "step 2 \N{CHECK MARK}"
        np.testing.assert_array_equal(step.observation["ticks"], [2**63 - 3])
        last = env.step(ACTION)
        assert (last.last(), last.discount) == (True, 0.0)
        again = env.reset(settings={"seed": 500})
        np.testing.assert_array_equal(again.observation["body"]["position"], [3, 500, 0])


def test_what_cannot_be_served_is_told_at_once() -> None:
    with pytest.raises(SpecError, match=r"there is no library /.*/nothing\.so"):
        environment_factory("nothing.so", "connect")
    with pytest.raises(SpecError, match="unknown EnvCApi version"):
        environment_factory(compile_library("complete", "1.4"), "complete_connect", version="9")


def test_the_command_serves_a_library() -> None:
    library = compile_library("complete", "2.2")
    options = ["--address", "localhost:0", "--c-version", "2.2", "--create", "length=2"]
    options += ["--c-library", f"{library}:complete_connect_with_params"]
    options += ["--c-param", "title", "--c-param", "interrupted"]
    with (
        served(*options) as address,
        dm_env_rpc_client.make(address, {"seed": 5}, timeout=30.0) as env,
    ):
        assert env.reset().observation["body"]["position"].tolist() == [0.0, 5.0, 0.0]
        env.step(ACTION)
        assert env.step(ACTION).discount == 1.0


def test_properties_go_through_the_properties_extension(complete: Factory) -> None:
    with served_properties(complete) as (env, properties):
        assert properties["speed"] == "1"
        properties["speed"] = 30
        assert properties["speed"] == "30"
        walked = {spec.key: spec for spec in properties.walk()}
        assert len(walked) == 5 + 31
        assert (walked["speed"].readable, walked["speed"].writable) == (True, True)
        assert (walked["calls"].listable, walked["calls"].spec) == (True, None)
        assert walked["calls.advance"].readable
        assert not walked["secret"].readable
        properties["secret"] = "word"
        with pytest.raises(PropertyNotFoundError, match="no property 'depth'"):
            properties["depth"]
        with pytest.raises(PropertyNotFoundError):
            properties.list("depth")
        with pytest.raises(PropertyPermissionError, match="do not allow it to be read"):
            properties["secret"]
        with pytest.raises(PropertyPermissionError, match="do not allow it to be written"):
            properties["violations"] = True
        with pytest.raises(PropertyValueError, match="it does not accept this value"):
            properties["speed"] = True
        with pytest.raises(PropertyValueError, match=r"requires a scalar, got shape \[2\]"):
            properties["speed"] = [1, 2]
        assert env.reset().first()
        assert env.step(ACTION).mid()
        assert properties["violations"] == "0"


SETTINGS = {"length": 5}


class _Conformance(test_utils.EnvironmentTestMixin):
    """Runs past the end of episodes, which are 5 steps long."""

    def make_action_sequence(self) -> Iterator[Any]:
        for _ in range(13):
            yield self.make_action()


class HereTest(_Conformance, absltest.TestCase):
    def make_object_under_test(self) -> dm_env.Environment:
        library = compile_library("complete", "2.2")
        return EnvCApiEnvironment(library, "complete_connect", version="2.2", settings=SETTINGS)


class ServedTest(_Conformance, absltest.TestCase):
    """Each world is in a child process."""

    def make_object_under_test(self) -> dm_env.Environment:
        library = compile_library("complete", "1.4")
        server = serve(
            environment_factory(library, "complete_connect", events_observation="events")
        )
        self.addCleanup(server.stop, 0.0)
        return dm_env_rpc_client.make(server.address, SETTINGS)


def opening(**kwargs: Any) -> Opening:
    path = compile_library("complete", "1.4")
    complete = Opening(path, "complete_connect", "1.4", None, {}, None, {}, 3, DEFAULT)
    return complete._replace(**kwargs)


@pytest.fixture
def runner() -> Iterator[ProcessRunner]:
    opened = ProcessRunner(opening(), 60.0)
    yield opened
    opened.close()


def test_the_start_of_the_child_takes_nothing_from_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = "import time; time.sleep(2.5); "  # So slow is the machine.
    monkeypatch.setattr(process_runner, "_PROGRAM", slow + process_runner._PROGRAM)
    runner = ProcessRunner(opening(), 2.0)
    assert runner.description.observations
    runner.close()


def test_a_runner_whose_library_does_not_open_ends_its_child() -> None:
    before = descriptor_count()
    with pytest.raises(ProtocolError, match="leaves act_text, advance null"):
        ProcessRunner(opening(library=compile_library("complete", "2.2")), 60.0)
    assert descriptor_count() == before


def test_an_interrupted_call_is_the_last_one(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ChildPipe.receive

    def interrupted(pipe: ChildPipe, timeout: float | None = None) -> Any:
        real(pipe, timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChildPipe, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.read_property("speed")
    monkeypatch.undo()
    with pytest.raises(ConnectionLostError, match="has ended"):
        runner.read_property("speed")


def test_a_child_that_does_not_come_to_an_end_is_killed(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "CLOSE_SECONDS", 0.3)
    freeze(runner._process.pid)
    begin = Stopwatch()
    runner.close()
    assert begin.within(5.0)
    assert runner._process.returncode == -signal.SIGKILL
