"""What becomes of an environment whose server or connection is lost, and what it says."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import pickle
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvAdaptor,
    DmEnvRpcClientError,
    EnvironmentsFailedError,
    Restart,
    RestartWarning,
    SpecError,
    make,
    make_async,
)
from dm_env_rpc_client.environment import world_ends, worlds
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch import from_python, launched
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import FaultProxy
from dm_env_rpc_client.transports.endpoint import Transport
from tests.launch.processes import Launcher, kill, server_of
from tests.support.environments import Echo
from tests.support.scripted import freeze, settles
from tests.support.stopwatch import patience

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

RESTART = Restart(attempts=3, backoff=0.01)


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def lossy(echo_environment_server: Server) -> Iterator[FaultProxy]:
    """The way to a server in this process, which can be reset: cheaper than a server to kill."""
    with FaultProxy(echo_environment_server.address) as proxy:
        yield proxy


@pytest.fixture
def env(lossy: FaultProxy) -> Iterator[DmEnvAdaptor]:
    """An environment of the lossy server, in a sequence."""
    with make(lossy.address, restart=RESTART) as env:
        env.reset()
        yield env


def seen(env: DmEnvAdaptor) -> tuple[int, type, State]:
    return env.restarts, type(env.interruption), env.state


def test_a_lost_step_ends_the_sequence_and_the_next_begins_another(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    with make(launcher, {"length": 2}, restart=RESTART) as env:
        env.reset()
        assert env.step({"value": 7}).mid()
        assert seen(env) == (0, type(None), State.RUNNING)
        launcher.kill()
        with caplog.at_level(logging.WARNING, "dm_env_rpc_client"):
            lost = env.step({"value": 8})
        assert lost.last()
        assert (lost.reward, lost.discount, lost.observation) == (0.0, 1.0, {"value": 7})
        assert seen(env) == (0, ConnectionLostError, State.INTERRUPTED)
        assert "lost the environment at unix:" in caplog.text
        first = env.step({"value": 9})
        assert first.first()
        assert first.observation == {"value": -1}
        assert seen(env) == (1, type(None), State.RUNNING)
        assert env.step({"value": 10}).observation == {"value": 10}
        assert env.step({"value": 11}).last(), "the settings are those of make"
    assert launcher.all_ended()


def test_a_warning_that_is_an_error_is_raised_when_all_is_in_order(
    lossy: FaultProxy, env: DmEnvAdaptor
) -> None:
    lossy.reset()
    assert env.step({"value": 1}).last()
    with pytest.warns(RestartWarning, match=r"was lost and restarted \(restart 1\)"):
        assert env.step({"value": 1}).first()
    lossy.reset()
    assert env.step({"value": 1}).last()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RestartWarning, match=r"\(restart 2\)"):
            env.step({"value": 1})
    assert env.step({"value": 1}).first()


def test_reset_begins_a_sequence_at_once(lossy: FaultProxy, env: DmEnvAdaptor) -> None:
    env.step({"value": 7})
    lossy.reset()
    assert env.reset().first()
    assert env.restarts == 1
    lossy.reset()
    assert env.reset({"length": 1}).first()
    assert env.restarts == 2
    assert env.step({"value": 7}).last()
    lossy.reset()
    # There is no sequence that could end.
    assert env.step({"value": 8}).first()
    assert env.restarts == 3


def test_a_frozen_server_is_replaced(launcher: Launcher) -> None:
    with make(launcher, restart=RESTART, request_timeout=patience(1.0)) as env:
        env.reset()
        freeze(server_of(launcher.launches[0]))
        assert env.step({"value": 1}).last()
        assert isinstance(env.interruption, DeadlineExceededError)
        assert env.step({"value": 2}).first()
        assert len(launcher.launches) == 2


def test_a_server_that_was_there_is_connected_to_again(
    lossy: FaultProxy, echo_environment_server: Server
) -> None:
    # A step that is answered gives its attempt back.
    with make(lossy.address, restart=Restart(attempts=1)) as env:
        env.reset()
        for count in range(1, 4):
            assert env.step({"value": count}).mid()
            lossy.reset()
            assert env.step({"value": 0}).last()
            assert env.step({"value": 0}).first()
            assert env.restarts == count
    assert settles(lambda: echo_environment_server.agent_count == 0)


def test_attempts_are_used_up_by_a_server_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    server = serve(Echo)
    with make(server.address, restart=RESTART, timeout=patience(0.3)) as env:
        env.reset()
        server.stop(0.0)
        assert env.step({"value": 1}).last()
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="could not connect") as caught:
                env.step({"value": 2})
        assert len(list(causes(caught.value, "could not connect"))) == 3
        assert len(list(causes(caught.value, "was lost|ended"))) >= 1
        assert "attempt 3 of 3 to restart failed" in caplog.text
        assert env.restarts == 0


def causes(error: BaseException | None, text: str) -> Iterator[BaseException]:
    while error is not None:
        if re.search(text, str(error)):
            yield error
        error = error.__cause__


def test_attempts_are_used_up_by_a_server_that_ends_again_at_once() -> None:
    launcher = Launcher("tests.launch.test_restarting:Mortal")
    settings = {"end": "os._exit(3)"}
    with make(launcher, settings, restart=Restart(attempts=2, backoff=0.01)) as env:

        def run() -> None:
            for _ in range(20):
                env.step({"value": 1})

        with pytest.raises(ConnectionLostError):
            run()
        assert env.restarts == 2
    assert len(launcher.launches) == 3


class Wider(Echo):
    def observation_spec(self) -> dict[str, specs.Array]:
        return {**super().observation_spec(), "extra": specs.Array((), np.float32, "extra")}


def test_other_specs_are_an_error_that_says_which() -> None:
    launcher = Launcher("tests.support.environments:Echo", f"{__name__}:Wider")
    with make(launcher, restart=RESTART) as env:
        env.reset()
        launcher.kill()
        assert env.step({"value": 1}).last()
        with pytest.raises(SpecError, match=r"different observation_spec: .*'extra' is Array"):
            env.step({"value": 1})


def test_extensions_and_callbacks_follow(lossy: FaultProxy) -> None:
    with make(
        lossy.address,
        extensions=lambda connection: {"properties": PropertiesExtension(connection)},
        restart=RESTART,
    ) as env:
        told: list[DmEnvAdaptor] = []
        env.on_restart(told.append)
        properties = cast("Any", env).properties
        lossy.reset()
        assert env.reset().first()
        assert told == [env]
        assert cast("Any", env).properties is not properties
        cast("Any", env).properties.list()


def test_steps_ahead_of_a_lost_one(lossy: FaultProxy, env: DmEnvAdaptor) -> None:
    steps = env.rollout(({"value": value} for value in range(60)), ahead=8)
    seen = [next(steps) for _ in range(20)]
    lossy.reset()
    seen += list(steps)
    types = [timestep.step_type.name for timestep in seen]
    assert len(seen) == 60
    assert types.count("LAST") == types.count("FIRST") == env.restarts == 1
    lost = types.index("LAST")
    assert types[lost + 1] == "FIRST"
    for value, timestep in enumerate(seen):
        expected = {lost: lost - 1, lost + 1: -1}.get(value, value)
        assert timestep.observation["value"] == expected


def test_asyncio(lossy: FaultProxy) -> None:
    async def run() -> None:
        async with await make_async(lossy.address, restart=RESTART) as env:
            await env.reset()
            assert (await env.step({"value": 7})).mid()
            lossy.reset()
            lost = await env.step({"value": 8})
            assert (lost.last(), lost.discount, lost.observation) == (True, 1.0, {"value": 7})
            assert env.interruption is not None
            lossy.reset()
            assert (await env.reset()).first()
            lossy.reset()
            together = await asyncio.gather(*(env.step({"value": value}) for value in range(4)))
            assert [step.step_type.name for step in together] == ["LAST", "FIRST", "MID", "MID"]
            assert [int(step.observation["value"]) for step in together[2:]] == [2, 3]

    asyncio.run(run())


def test_a_batch_of_which_one_cannot_be_restarted() -> None:
    launchers = [Launcher(), Launcher("tests.support.environments:Echo", "no_such_module:Env")]
    with BatchedEnvironment(launchers, restart=RESTART) as envs:
        envs.reset()
        launchers[1].kill()
        assert envs.step({"value": np.arange(2)}).last().tolist() == [False, True]
        with pytest.raises(DmEnvRpcClientError, match=r"environment 1 at .*no_such_module"):
            envs.step({"value": np.arange(2)})


def test_closing_a_lost_environment_restarts_nothing(lossy: FaultProxy, env: DmEnvAdaptor) -> None:
    lossy.reset()
    assert env.step({"value": 1}).last()
    env.close()
    assert env.restarts == 0
    with pytest.raises(DmEnvRpcClientError, match="closed"):
        env.step({"value": 1})


def test_closing_an_environment_that_is_restarted_leaves_no_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = world_ends.received_name
    restarted: DmEnvAdaptor

    def close_and_receive(*arguments: Any) -> Any:
        restarted.close()  # As another thread may do when a new world has just been created.
        return received(*arguments)

    with serve(Echo, idle_world_seconds=0.0) as server, FaultProxy(server.address) as proxy:
        restarted = make(proxy.address, restart=RESTART)
        monkeypatch.setattr(worlds, "received_name", close_and_receive)
        proxy.reset()
        with pytest.raises(ConnectionClosedError, match="closed while it was being restarted"):
            restarted.reset()
        with pytest.raises(ConnectionClosedError):
            restarted.reset()
        assert settles(lambda: (server.stats().worlds, server.agent_count) == (0, 0))


def test_pauses_double_up_to_a_limit() -> None:
    restart = Restart(backoff=1.0, max_backoff=5.0)
    assert restart.pause(0) == 0.0
    for used, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (2000, 5.0)]:
        pauses = [restart.pause(used) for _ in range(100)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


MORTAL = "python:tests.launch.test_restarting:Mortal"

ENDS = {
    "os.kill(os.getpid(), 11)": (-11, "was ended by signal 11 (SIGSEGV)"),
    "os._exit(3)": (3, "ended with exit code 3"),
    "os.kill(os.getpid(), 9)": (-9, "was ended by signal 9 (SIGKILL)"),
    "[print(f'line {i}') for i in range(10_000)]; os.abort()": (
        -6, "was ended by signal 6 (SIGABRT)",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _processes_may_end_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a process may need a while between closing its sockets and its end.
    monkeypatch.setattr(launched, "_END_SECONDS", patience(launched._END_SECONDS))


class Mortal(Echo):
    """Prints its last words, and runs `end` in the first step."""

    def __init__(self, end: str = ""):
        super().__init__()
        self._end = end

    def step(self, action: Any) -> Any:
        print("no licence\x1b[2J")
        exec(self._end, {"os": os})
        time.sleep(60)  # A signal may be delivered to another thread.


def check(error: ConnectionLostError, end: str) -> None:
    code, said = ENDS[end]
    text = str(error)
    assert f"the server {said}: " in text
    assert "Its last lines:\n" in text
    assert "dm_env_rpc_client.server" in text
    assert text.count("Its last lines") == 1
    assert "\x1b" not in text
    if "10_000" in end:
        assert text.endswith("line 9998\nline 9999")
        assert "line 9900\n" not in text
    else:
        assert text.endswith("no licence\\x1b[2J")
    assert error.server_end is not None
    assert error.server_end.exit_code == code
    assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == text


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("end", ENDS)
def test_a_step(end: str, transport: Transport) -> None:
    with make(MORTAL, {"end": end}, transport=transport) as env:
        env.reset()
        with pytest.raises(ConnectionLostError) as caught:
            env.step({"value": 1})
        check(caught.value, end)
        # So do the steps after it.
        with pytest.raises(ConnectionLostError) as later:
            env.step({"value": 1})
        check(later.value, end)
        assert env.server is not None
    assert env.server.exit_code == ENDS[end][0]
    assert "no licence" in env.server.logs() or "line 9999" in env.server.logs()


def test_futures_coroutines_and_environments_of_a_batch() -> None:
    end = "os._exit(3)"
    with make(MORTAL, {"end": end}) as env:
        env.reset()
        error = env.submit_step({"value": 1}).exception()
        assert isinstance(error, ConnectionLostError)
        check(error, end)

    async def run() -> None:
        async with await make_async(MORTAL, {"end": end}) as env:
            await env.reset()
            with pytest.raises(ConnectionLostError) as caught:
                await env.step({"value": 1})
            check(caught.value, end)

    asyncio.run(run())
    with BatchedEnvironment([MORTAL, MORTAL], create_world_settings={"end": end}) as batch:
        batch.reset()
        with pytest.raises(EnvironmentsFailedError, match="ended with exit code 3") as failed:
            batch.step({"value": [1, 1]})
        for each in failed.value.failures.values():
            assert isinstance(each, ConnectionLostError)
            check(each, end)


def test_a_server_that_was_launched_by_hand_and_noticed_before_a_step_is_sent() -> None:
    with from_python("tests.launch.test_restarting:Mortal") as launch, make(launch.address) as env:
        assert env.server is None
        env.reset()
        kill(launch)
        assert settles(env.connection.has_unread)
        with pytest.raises(ConnectionLostError, match=r"by signal 9 \(SIGKILL\)") as caught:
            env.step({"value": 1})
        assert caught.value.server_end is not None


def test_a_connection_that_is_lost_while_the_server_runs_has_no_such_words() -> None:
    with (
        from_python("tests.launch.test_restarting:Mortal") as launch,
        FaultProxy(launch.address) as way,
    ):
        with make(way.address) as env:
            env.reset()
            way.reset()
            with pytest.raises(ConnectionLostError) as caught:
                env.step({"value": 1})
            assert env.restarts == 0
        assert caught.value.server_end is None
        assert launch.is_running
