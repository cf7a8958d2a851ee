"""What goes wrong in the first hour: a taken port, the wrong server, the wrong interface."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionLostError,
    DmEnvAdaptor,
    EnvironmentsFailedError,
    ProtocolError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
    make,
    make_async,
)
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.launch import standalone
from dm_env_rpc_client.recording import proxy, replay
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.endpoint import Transport
from tests.mistakes.doors import Mistake
from tests.support.forks import run_command
from tests.support.programs import run_python
from tests.support.stopwatch import patience

PLACES = ["localhost", "unix", "unix-grpc", "a file"]


@pytest.fixture(scope="module", params=PLACES)
def taken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An address at which another server listens, or a file that is no socket."""
    path = tmp_path_factory.mktemp("taken") / "it"
    if request.param == "a file":
        path.write_text("precious")
        yield f"unix:{path}"
        assert path.read_text() == "precious"
        return
    address = "localhost:0" if request.param == "localhost" else f"unix:{path}"
    with serve(Catch, address, transport="grpc" if "grpc" in request.param else "auto") as server:
        yield server.address
        # Nothing has taken it away.
        with make(server.address) as env:
            assert env.reset().first()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.mcap"
    with serve(Catch) as server, make(server.address, record=str(path)) as env:
        env.reset()
    return path


LISTENERS: dict[str, Callable[[str, Path], Any]] = {
    "serve": lambda address, path: serve(Catch, address),
    "serve over grpc": lambda address, path: serve(Catch, address, transport="grpc"),
    "serve in processes": lambda address, path: serve(Catch, address, processes=2),
    "proxy": lambda address, path: proxy("localhost:1", path.with_name("b.mcap"), address=address),
    "replay": lambda address, path: replay(path, address),
    "gym-socket": lambda address, path: gym_socket.serve({"catch": Catch}, address),
}


BOTH = [
    *((listener, place) for listener in LISTENERS for place in PLACES if listener != "gym-socket"),
    ("gym-socket", "localhost"),  # It is for TCP only.
]


@pytest.mark.parametrize(("listener", "taken"), BOTH, indirect=["taken"])
def test_an_address_that_is_taken_is_an_error_with_its_number(
    listener: str, taken: str, recorded: Path
) -> None:
    with pytest.raises(OSError, match="cannot listen on") as caught:
        LISTENERS[listener](taken, recorded)
    assert caught.value.errno == errno.EADDRINUSE
    assert f"cannot listen on {taken}: Address already in use; another program" in str(caught.value)
    assert f"choose another {'path' if taken.startswith('unix:') else 'port'}" in str(caught.value)
    # What it was to record to is not in the way of another attempt.
    assert [path.name for path in recorded.parent.iterdir()] == ["run.mcap"]


def test_the_server_in_one_file_says_the_same(taken: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, standalone.FILE, "tests.support.environments:Echo", "--address", taken],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    with pytest.raises(OSError, match="cannot listen") as caught:
        serve(Catch, taken)
    assert ended.stderr.splitlines()[-1] == f"OSError: {caught.value}"


OTHERS: dict[str, tuple[str, type[OSError], str]] = {
    "of another machine": ("203.0.113.1:5000", OSError, "Cannot assign requested address"),
    "no folder": ("unix:/no-such-folder/it", FileNotFoundError, "No such file or directory"),
    "too long": (f"unix:/{'x' * 200}", OSError, ""),
}
"""Addresses that are none of this machine's."""


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("case", OTHERS)
def test_an_address_that_there_is_not_is_named_with_the_cause(case: str, transport: Any) -> None:
    address, error, cause = OTHERS[case]
    with pytest.raises(error) as caught:
        serve(Catch, address, transport=transport, insecure=True)
    assert f"cannot listen on {address}: {cause}" in str(caught.value)


def test_the_file_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    make_stale = f"import socket; socket.socket(socket.AF_UNIX).bind({str(path)!r})"
    for run in (
        functools.partial(serve, Catch, f"unix:{path}"),
        functools.partial(serve, Catch, f"unix:{path}", transport="grpc"),
    ):
        run_python("-c", make_stale)
        assert path.is_socket()
        with run() as server, make(server.address) as env:
            assert env.reset().first()
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def other_service() -> Iterator[str]:
    """The address of a gRPC server that has another service."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("lights.v1.Lights", {"Switch": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


Ask = Callable[[str, Transport], object]


def send(address: str, transport: Transport) -> None:
    with connect(address, transport=transport) as connection:
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())


def send_later(address: str, transport: Transport) -> None:
    with connect(address, transport=transport) as connection:
        connection.submit(dm_env_rpc_pb2.CreateWorldRequest()).result()


async def send_async(address: str, transport: Transport) -> None:
    async with await connect_async(address, transport=transport) as connection:
        await connection.send(dm_env_rpc_pb2.CreateWorldRequest())


ASKS: dict[str, Ask] = {
    "make": lambda address, transport: make(address, transport=transport),
    "make_async": lambda address, transport: asyncio.run(make_async(address, transport=transport)),
    "connect": send,
    "connect, a future": send_later,
    "connect_async": lambda address, transport: asyncio.run(send_async(address, transport)),
}


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("ask", ASKS)
def test_another_grpc_service_is_told_as_such_in_the_first_words(
    ask: str, transport: Transport, other_service: str
) -> None:
    with pytest.raises((ConnectionLostError, ProtocolError)) as caught:
        ASKS[ask](other_service, transport)
    text = str(caught.value)
    assert text.startswith(f"the server at {other_service} does not speak dm_env_rpc: it answered ")
    assert "UNIMPLEMENTED" in text
    assert "check the address" in text
    assert "which answer" not in text


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_each_environment_of_a_batch_says_the_same(transport: Any, other_service: str) -> None:
    with pytest.raises(EnvironmentsFailedError) as caught:
        BatchedEnvironment(other_service, 2, transport=transport)
    for failure in caught.value.failures.values():
        assert str(failure).startswith(f"the server at {other_service} does not speak dm_env_rpc: ")


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "properties list"])
def test_a_command_says_the_same(command: str, other_service: str) -> None:
    ended = run_command(*command.split(), other_service)
    assert ended.returncode == 1
    assert f"the server at {other_service} does not speak dm_env_rpc: " in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


REMOTE = 'gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=...)'
REMOTE_BATCH = (
    'gymnasium.make_vec("dm_env_rpc_client.gymnasium:Remote-v0", num_envs=..., address=...)'
)

TAKEN_FOR_GYMNASIUM = {
    "reset(seed=1)": Mistake(
        lambda env: env.reset(seed=1), ".reset()", "'seed'", 'such as reset({"seed": 1})',
        TypeError,
    ),
    "reset(options={})": Mistake(
        lambda env: env.reset(options={}), ".reset()", "'options'", "reset({...})", TypeError,
    ),
    "action_space": Mistake(
        lambda env: env.action_space, "object has no", "'action_space'",
        "which has action_spec() instead", AttributeError,
    ),
    "observation_space": Mistake(
        lambda env: env.observation_space.shape, "object has no", "'observation_space'",
        "which has observation_spec() instead", AttributeError,
    ),
    "single_action_space": Mistake(
        lambda env: env.single_action_space, "object has no", "'single_action_space'",
        "which has action_spec() instead", AttributeError,
    ),
    "render()": Mistake(
        lambda env: env.render(), "object has no", "'render'", "has observations", AttributeError,
    ),
    "unwrapped": Mistake(
        lambda env: env.unwrapped, "object has no", "'unwrapped'", "a dm_env env", AttributeError,
    ),
}  # fmt: skip
MISSPELT = {
    "reset(setings={})": Mistake(
        lambda env: env.reset(setings={}), ".reset()", "'setings'", "did you mean 'settings'?",
        TypeError,
    ),
}  # fmt: skip


def a_batch(address: str) -> Any:
    return BatchedEnvironment(address, 2)


OF_DM_ENV: list[tuple[Callable[[str], Any], str]] = [(make, REMOTE), (a_batch, REMOTE_BATCH)]


@pytest.mark.parametrize(("make_one", "advice"), OF_DM_ENV)
def test_what_is_taken_for_an_environment_of_gymnasium_says_how_to_get_one(
    make_one: Callable[[str], Any], advice: str, catch: str
) -> None:
    with contextlib.closing(make_one(catch)) as env:
        for mistake in TAKEN_FOR_GYMNASIUM.values():
            mistake.check(env)
            mistake._replace(advice=advice).check(env)
        for mistake in MISSPELT.values():
            mistake.check(env)
        # They are not there, and not offered.
        assert not hasattr(env, "action_space")
        assert not {"action_space", "render", "spec", "unwrapped"} & set(dir(env))
        assert "reset" in dir(env)
        assert np.all(env.reset({}).first())


def test_an_environment_for_asyncio_says_the_same(catch: str) -> None:
    async def main() -> None:
        async with await make_async(catch) as env:
            taken: Any = env
            for name in ("action_space", "observation_space"):
                TAKEN_FOR_GYMNASIUM[name]._replace(advice=REMOTE).check(env)
            for name in ("seed", "options"):
                with pytest.raises(TypeError) as caught:
                    await taken.reset(**{name: 1})
                for part in ("AsyncDmEnvAdaptor.reset()", repr(name), "reset({", REMOTE):
                    assert part in str(caught.value)
            assert inspect.iscoroutinefunction(env.reset)
            assert (await env.reset()).first()

    asyncio.run(main())


def test_what_a_subclass_or_an_extension_has_takes_the_place_of_the_hint(catch: str) -> None:
    class Drawn(DmEnvAdaptor):
        metadata = {"fps": 5}  # noqa: RUF012

        def render(self) -> str:
            return "a picture"

    drawn: Any = make(catch, adaptor_class=Drawn, extensions={"spec": "an extension"})
    with drawn as env:
        assert (env.render(), env.metadata) == ("a picture", {"fps": 5})
        assert env.spec == "an extension"
        assert {"metadata", "render", "spec"} <= set(dir(env))
        assert env.reset(settings={}).first()
