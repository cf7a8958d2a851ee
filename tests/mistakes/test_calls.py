"""What users do wrong, and the words that they get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import ConnectionLostError, LaunchError, SpecError, server
from dm_env_rpc_client.server import Catch
from tests.mistakes.doors import connect_async, make_async
from tests.support.environments import Echo
from tests.support.forks import run_command


class Abstract(dm_env.Environment):
    """A dm_env.Environment without its methods."""


async def coroutine() -> Echo:
    return Echo()


def positional(length: int, /) -> Echo:
    return Echo(length)


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with server.serve(Catch, token="secret") as running:
        yield running.address


MEANT = "unexpected keyword argument 'requst_timeout'; did you mean 'request_timeout'?"

# Also what type checkers refuse.
make: Any = dm_env_rpc_client.make
connect: Any = dm_env_rpc_client.connect
BatchedEnvironment: Any = dm_env_rpc_client.BatchedEnvironment
serve: Any = server.serve
CALLS: dict[str, tuple[Callable[[str], Any], type[Exception], list[str]]] = {
    "make(address, requst_timeout=3)": (
        lambda address: make(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "BatchedEnvironment(address, requst_timeout=3)": (
        lambda address: BatchedEnvironment(address, 2, requst_timeout=3), TypeError, [MEANT],
    ),
    "make(address, rows=3)": (
        lambda address: make(address, nested_tensors=False, rows=3), TypeError,
        ["settings are passed in a dictionary: make(address, {'rows': ...})"],
    ),
    "make_async(address, rows=3)": (
        lambda address: make_async(address, rows=3), TypeError,
        ["settings are passed in a dictionary: make(address, {'rows': ...})"],
    ),
    "connect(address, requst_timeout=3)": (
        lambda address: connect(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "connect_async(address, requst_timeout=3)": (
        lambda address: connect_async(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "make(Catch)": (
        lambda _: make(Catch), SpecError,
        ["such as 'localhost:50051', got the class Catch", "'python:dm_env_rpc_client.server"],
    ),
    "make(lambda: None)": (
        lambda _: make(lambda: None), SpecError,
        ["must return a launch.Launch", "returned NoneType"],
    ),
    "make(guarded)": (make, ConnectionLostError, ["UNAUTHENTICATED", "pass token= to make"]),
    "serve(Catch(), processes=2)": (
        lambda _: serve(Catch(), processes=2), SpecError,
        ["processes=2: an instance of Catch already exists", "pass a factory, such as its class"],
    ),
    "serve(abstract)": (
        lambda _: serve(Abstract), SpecError,
        ["Abstract is abstract; implement action_spec, observation_spec, reset, step"],
    ),
    "serve(coroutine)": (
        lambda _: serve(coroutine), SpecError, ["coroutine does not return an environment"],
    ),
    "serve(positional)": (
        lambda _: serve(positional), SpecError, ["requires the positional-only argument 'length'"],
    ),
    "make('gymnasium://CartPol-v1')": (
        lambda _: make("gymnasium://CartPol-v1"), LaunchError,
        ["error: cannot make gymnasium://CartPol-v1: "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call(call: str, guarded: str) -> None:
    function, error, said = CALLS[call]
    with pytest.raises(error) as caught:
        function(guarded)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("reference", ["gymnasium://CartPole-v1"])
def test_environments_of_other_packages_are_served_for_a_command_and_for_make(
    reference: str,
) -> None:
    ended = run_command("run", reference, "--episodes", "1", "--max-steps", "3")
    assert ended.returncode == 0, ended.stderr
    with make(reference) as env:
        assert env.reset().first()


def test_the_package_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dm_env_rpc_client", "--version"],
        capture_output=True, check=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stdout.startswith("dm-env-rpc")
