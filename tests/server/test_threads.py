"""Each environment has one thread for its life, whoever asks, however long its steps take."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    join_world,
    leave_world,
    make,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Catch, Race, Server, serve
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.worlds.environment_world import EnvironmentWorld
from dm_env_rpc_client.system import owner_threads
from tests.server.one_thread import Ident, Level, Threads
from tests.server.test_discounts import Alone
from tests.support.scripted import settles
from tests.support.stopwatch import patience


class Made(Level):
    """A level whose constructor counts, too, and whose steps take as long as it is told."""

    made: list[Made] = []  # noqa: RUF012  # for the test that has it emptied

    def __init__(self, seconds: float = 0.0, gain: int = 1) -> None:
        super().__init__()
        self.step_seconds = seconds
        self.led: list[bool] = []
        self.threads.note("constructor")
        self.made.append(self)

    def step(self, action: Any) -> dm_env.TimeStep:
        here = owner_threads.current()
        self.led.append(here is not None and here.leads)
        return super().step(action)


@pytest.fixture(autouse=True)
def made() -> Iterator[list[Made]]:
    Made.made.clear()
    yield Made.made
    Made.made.clear()


@pytest.fixture(params=["http2", "grpc"])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


def step_all(envs: list[DmEnvAdaptor], count: int) -> None:
    for _ in range(count):
        for future in [env.submit_step({"go": 1}) for env in envs]:
            future.result()


def test_a_client_that_dies_in_a_step(transport: Any, made: list[Made]) -> None:
    with serve(Made, transport=transport, idle_world_seconds=0.0) as server:
        connected = connect(server.address, transport=transport)
        env, _ = create_and_join_world(connected, {}, {})
        env.reset()
        made[0].may_go_on.clear()
        env.submit_step({"go": 1})
        assert made[0].is_in_step.wait(30)
        connected.close()
        made[0].may_go_on.set()
        assert settles(lambda: made[0].threads.closed == 1)
    made[0].threads.the_one("constructor", "step", "close")


def test_others_go_on_while_a_step_does_not_end(transport: Any, made: list[Made]) -> None:
    """Also while another world of its thread waits for it."""
    with (
        serve(Made, transport=transport) as server,
        make(server.address, transport=transport) as slow,
        make(server.address, transport=transport) as cheap,
    ):
        slow.reset()
        cheap.reset()
        level = made[0]
        level.may_go_on.clear()
        answers = [slow.submit_step({"go": 1})]
        assert level.is_in_step.wait(30)
        answers.append(cheap.submit_step({"go": 1}))
        try:
            for _ in range(2):
                with make(server.address, transport=transport) as env:
                    env.reset()
                    step_all([env], 5)
            assert not answers[0].done()
        finally:
            level.may_go_on.set()
        for answer in answers:
            answer.result()
        step_all([slow], 40)
    assert len(made) == 4
    for each in made:
        each.threads.the_one("constructor", "step", "close")


def test_the_lead_goes_back_after_a_slow_step(made: list[Made]) -> None:
    """Otherwise a server has a thread more from then on, and quick steps a change of threads."""
    with serve(Made) as server, make(server.address) as env, connect(server.address) as other:
        env.reset()
        level = made[0]

        def count() -> int:
            names = [thread.name for thread in threading.enumerate()]
            return names.count(f"dm_env_rpc {server.address} leads")

        def goes_back() -> bool:
            step_all([env], 40)  # On a busy machine the former answers may have taken long.
            level.is_in_step.clear()
            level.may_go_on.clear()
            answer = env.submit_step({"go": 1})
            assert level.is_in_step.wait(30)
            assert PropertiesExtension(other).specs() == {}  # Another thread reads now.
            assert count() == 3
            level.may_go_on.set()
            answer.result()
            step_all([env], 1)
            return settles(lambda: count() == 2, 2.0)  # One leads, and one watches.

        def is_led_again() -> bool:
            step_all([env], 40)
            return level.led[-1]

        assert settles(goes_back)
        assert settles(is_led_again)
        level.threads.the_one("constructor", "step")


def test_the_lead_follows_the_world_that_is_stepped(made: list[Made]) -> None:
    """Otherwise each step of all worlds but those of one thread would take a change of threads."""
    with (
        serve(Made, threads="world") as server,
        make(server.address) as one,
        make(server.address) as other,
    ):
        envs = [one, other]
        for env in envs:
            env.reset()
        for stepped in (0, 1, 0):

            def is_led(env: DmEnvAdaptor = envs[stepped], level: Made = made[stepped]) -> bool:
                step_all([env], 40)
                return all(level.led[-20:])

            assert settles(is_led)
        for level in made:
            level.led.clear()
        for _ in range(50):
            step_all([one], 1)
            step_all([other], 1)
        # In turns, it stays where it is: a change of the lead costs as much as one of the threads.
        changes = sum(one != after for one, after in itertools.pairwise(made[1].led))
    assert changes <= 2
    one_thread, other_thread = (level.threads.the_one("step") for level in made)
    assert one_thread != other_thread


def test_an_owner_is_not_slow_for_a_stream_that_has_left(made: list[Made]) -> None:
    """Otherwise it would never lead again, and its other worlds would cost changes of threads."""
    with (
        serve(Made, threads=None) as server,
        make(server.address) as env,
        connect(server.address) as other,
    ):
        slow, _ = create_and_join_world(other, {"seconds": 0.003}, {})
        env.reset()
        slow.reset()
        step_all([slow], 20)
        leave_world(other)

        def is_led_again() -> bool:
            step_all([env], 10)
            return made[0].led[-1]

        assert settles(is_led_again)
        one, two = (level.threads.the_one("step") for level in made)
        assert one == two


@pytest.mark.parametrize("threads", [None, "world"])
def test_a_cheap_world_waits_only_for_those_of_its_own_thread(
    threads: Any, made: list[Made]
) -> None:
    """How long it waits is what the guide says: as long as a step of the other takes."""
    seconds = patience(1.0)
    with (
        serve(Made, threads=threads) as server,
        make(server.address, {"seconds": seconds}) as slow,
        make(server.address) as cheap,
    ):
        slow.reset()
        cheap.reset()
        answer = slow.submit_step({"go": 1})
        assert made[0].is_in_step.wait(30)
        began = time.monotonic()
        cheap.step({"go": 1})
        waited = time.monotonic() - began
        answer.result()
        one, other = (level.threads.the_one("step") for level in made)
    assert (waited > seconds / 2, one == other) == ((threads is None), (threads is None))


def test_worlds_of_a_slow_factory_have_threads_of_their_own(made: list[Made]) -> None:
    with serve(Made) as server:
        with make(server.address, {"seconds": 0.003}) as env:
            env.reset()
            step_all([env], 20)
        with contextlib.ExitStack() as stack:
            envs = [stack.enter_context(make(server.address, {"seconds": 0.003})) for _ in range(3)]
            for env in envs:
                env.reset()
            step_all(envs, 3)
    assert len({level.threads.the_one("constructor", "step") for level in made[1:]}) == 3


# Batches.


class Refusing(Made):
    """A level that refuses a gain, and says how a gain that it took is undone."""

    def configure(self, settings: Mapping[str, Any]) -> Any:
        if settings["gain"] < 0:
            raise ValueError("no such gain")
        super().configure(settings)
        return lambda: self.threads.note("undo")


@pytest.mark.parametrize("threads", [None, "world"])
def test_rows_undo_settings_in_their_threads(threads: Any, made: list[Made]) -> None:
    with (
        serve(Refusing, threads=threads) as server,
        make(server.address, {"num_envs": 3}) as env,
    ):
        env.reset()
        with pytest.raises(DmEnvRpcError, match="no such gain"):
            env.reset({"rows.gain": np.array([2, 2, -1])})
        env.reset({"reset_mask": np.array([True, False, True]), "seconds": 0.001})
    all_threads = {level.threads.the_one("undo", "close") for level in made[:2]}
    assert len(all_threads) == (1 if threads is None else 2)
    assert [level.threads.closed for level in made] == [1] * 5
    assert settles(lambda: not all_threads & {thread.ident for thread in threading.enumerate()})


class Rowed(Made):
    """A level that says that it has rows already."""

    num_envs = 3

    @property
    def properties(self) -> Mapping[str, Any]:
        return {**super().properties, batches.WORLD_NUM_ENVS: lambda: self.num_envs}


@pytest.mark.parametrize("threads", [None, "world"])
def test_what_has_rows_already_has_the_thread_of_its_world(threads: Any, made: list[Made]) -> None:
    with (
        serve(Rowed, threads=threads) as server,
        make(server.address, {"num_envs": 3}) as env,
    ):
        env.reset()
        step_all([env], 3)
    made[-1].threads.the_one("constructor", "step", "close")
    for level in made:
        level.threads.the_one("constructor", "close")
        assert level.threads.closed == 1


# The main thread, or whichever waits.


@contextlib.contextmanager
def waiting(server: Server) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=server.wait)
    thread.start()
    yield thread
    server.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_an_instance_belongs_to_the_thread_that_waits(transport: Any, made: list[Made]) -> None:
    level = Made()
    server = serve(level, transport=transport, thread="main", idle_world_seconds=0.0)
    level.threads.seen.clear()  # It was made, and its specs were read, in this thread.
    with waiting(server) as thread:
        for _ in range(2):
            with make(server.address, transport=transport) as env:
                env.reset()
                step_all([env], 3)
                assert PropertiesExtension(env.connection)["steps"] in (3, 6)
        env = make(server.address, transport=transport)
        env.reset()
        server.stop()  # On a busy machine it may not wait until all is closed.
        with contextlib.suppress(ConnectionError):
            env.close()
    assert level.threads.the_one("reset", "close") == thread.ident
    assert level.threads.closed == 1


def test_nothing_is_done_before_a_thread_waits_and_between(made: list[Made]) -> None:
    with serve(Made, thread="main") as server, connect(server.address) as connected:
        with concurrent.futures.ThreadPoolExecutor() as executor:
            created = executor.submit(create_world, connected)
            with pytest.raises(concurrent.futures.TimeoutError):
                created.result(0.1)
            assert not made
            while not created.done():
                assert not server.wait(0.05)
        assert made[0].threads.the_one("constructor") == threading.get_ident()
        with concurrent.futures.ThreadPoolExecutor() as executor:
            other = executor.submit(server.wait)
            with pytest.raises(RuntimeError, match="the environments belong to the thread that"):
                other.result()
        assert server.stop()
    assert made[0].threads.the_one("close") == threading.get_ident()


def test_a_game_has_one_thread(transport: Any) -> None:
    class Noted(Race):
        def __init__(self) -> None:
            super().__init__()
            self.threads = Threads()
            noted.append(self)

    def noting(name: str) -> Any:
        def method(self: Noted, *arguments: Any) -> Any:
            self.threads.note(name)
            return getattr(Race, name)(self, *arguments)

        return method

    for name in ("join", "reset", "step", "timestep", "leave", "close"):
        setattr(Noted, name, noting(name))
    noted: list[Noted] = []
    with serve(Noted, transport=transport) as server:
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                connections = [
                    stack.enter_context(connect(server.address, transport=transport))
                    for _ in range(2)
                ]
                name = create_world(connections[0])
                envs = [join_world(each, name) for each in connections]
                for method in ("reset", "reset"):
                    with concurrent.futures.ThreadPoolExecutor() as executor:
                        list(executor.map(lambda env: getattr(env, method)(), envs))  # noqa: B023
                for env in envs:
                    env.close()
                destroy_world(connections[0], name)
    assert len(noted) == 2
    for game in noted:
        game.threads.the_one("join", "reset", "timestep", "leave", "close")


def test_a_world_that_was_closed_meanwhile_refuses_a_reset() -> None:
    owner = owner_threads.OwnerThread("owner")
    world = owner.call(EnvironmentWorld, owner, lambda _: Catch(), Catch(), {}, {})
    world.close()
    assert settles(lambda: "owner" not in [thread.name for thread in threading.enumerate()])
    with pytest.raises(RequestError, match="the world was closed"):
        world.reset({}, None)


STUCK: dict[str, Callable[[], Any]] = {
    "a factory": lambda: Made,
    "an instance": Made,
    "a game": lambda: lambda: Alone(Made()),
}


@pytest.mark.parametrize("kind", STUCK)
def test_a_server_stops_while_a_step_does_not_end(
    kind: str, made: list[Made], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    server = serve(STUCK[kind]())
    for level in made:
        level.threads.seen.clear()  # It was made in this thread.
    with connect(server.address) as connected:
        env, _ = create_and_join_world(connected, {}, {})
        env.reset()
        (level,) = made
        level.may_go_on.clear()
        future = env.submit_step({"go": 1})
        assert level.is_in_step.wait(30)
        assert not server.stop(0.1)
        assert level.threads.closed == 0
        assert isinstance(future.exception(20), ConnectionLostError)
        level.may_go_on.set()
        assert settles(lambda: level.threads.closed == 1)
    level.threads.the_one("step", "close")
    assert [type(error) for error in server.errors] == [TimeoutError]


@pytest.mark.parametrize("thread", [None, "main"])
def test_the_same_in_worker_processes(thread: Any) -> None:
    with serve(Ident, processes=2, thread=thread) as server:
        for num_batches in (0, 1):
            with BatchedEnvironment(server.address, 4, num_batches=num_batches) as envs:
                for _ in range(3):
                    observation = envs.reset().observation
                assert len(set(observation["pid"].tolist())) == 2
                assert observation["is_main"].tolist() == [thread == "main"] * 4
        # A world of another process than the one that has the connection.
        with connect(server.address) as one, connect(server.address) as other:
            name = create_world(one)
            env = join_world(other, name)
            assert env.reset().observation["is_main"] == (thread == "main")
        assert server.stop()
        assert server.errors == []
