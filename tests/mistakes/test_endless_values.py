"""Values that contain themselves, or are thousands of levels deep, wherever values are packed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import Catch, Server
from tests.mistakes.wrong_environments import ARRAY, CountdownEnv
from tests.support.serving import serving
from tests.tensors.test_nesting import ENDLESS, deep, deep_dict

TRANSPORTS = ["http2"]

FAILURES = (DmEnvRpcError, EnvironmentsFailedError)

BAD = [*ENDLESS, deep, deep_dict]


class Told(CountdownEnv):
    """Has the info that it is told to have, and counts its resets."""

    info: Callable[[], Any] | None = None
    resets = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        type(self).resets += 1
        return ARRAY, {} if Told.info is None else {"own": Told.info()}

    def say(self, value: Any = None) -> Any:
        return value if Told.info is None else Told.info()


catch = serving(Catch)


told = serving(Told, callable_names=["say"], settable_names=["said"])


@pytest.fixture(autouse=True)
def no_info() -> Iterator[None]:
    yield
    Told.info = None


@pytest.mark.parametrize("make", BAD)
def test_settings_that_contain_themselves(make: Callable[[], Any], catch: Server) -> None:
    address, bad = catch.address, make()
    before = catch.stats().requests["create_world"]
    doors: list[Callable[[], Any]] = [
        lambda: dm_env_rpc_client.make(address, {"own": bad}),
        lambda: dm_env_rpc_client.make(address, bad),
        lambda: asyncio.run(dm_env_rpc_client.make_async(address, {"own": bad})),
        lambda: BatchedEnvironment(address, 2, {"own": bad}),
        lambda: BatchedEnvironment(address, 2, bad),
        lambda: BatchedEnvironment(address, 2, [{"own": bad}, {"own": 1}]),
        lambda: BatchedEnvironment(address, 2, create_world_settings={"rows": bad}),
        lambda: RemoteVectorEnv(address, 2, {"own": bad}),
    ]
    for door in doors:
        with pytest.raises(SpecError) as it:
            door()
        assert len(str(it.value)) < 600
    assert catch.stats().requests["create_world"] == before
    with dm_env_rpc_client.make(address) as env:
        env.reset()
        for use in (
            lambda: env.reset({"own": bad}),
            lambda: env.step({"paddle": bad}),
            lambda: PropertiesExtension(env.connection).write("own", bad),
        ):
            with pytest.raises(SpecError):
                use()
        assert env.step({"paddle": 1}).mid()


def test_the_argument_that_contains_itself_is_named_and_no_other_is_shown(catch: Server) -> None:
    with pytest.raises(SpecError) as it:
        BatchedEnvironment(
            catch.address, 2, join_world_settings={"own": ENDLESS[0]()}, token="abc-secret"
        )
    assert "argument join_world_settings of BatchedEnvironment: a value contains" in str(it.value)
    assert "abc-secret" not in str(it.value)


@pytest.mark.parametrize("make", ENDLESS)
def test_options_and_arguments_of_calls_that_contain_themselves(
    make: Callable[[], Any], told: Server
) -> None:
    bad = make()
    env = make_remote(told.address)
    rows = [RemoteVectorEnv(told.address, 2, num_batches=number) for number in (0, 1)]
    try:
        env.reset()
        resets = Told.resets
        uses: list[Callable[[], Any]] = [
            lambda: env.reset(options={"own": bad}),
            lambda: env.get_wrapper_attr("say")(bad),
            lambda: env.set_wrapper_attr("said", bad),
        ]
        for each in rows:
            each.reset()
            uses += [
                functools.partial(each.reset, options={"own": bad}),
                functools.partial(each.call, "say", bad),
                functools.partial(each.set_attr, "said", [bad, bad]),
            ]
        resets = Told.resets
        for use in uses:
            with pytest.raises(SpecError, match="a value contains itself: "):
                use()
        assert Told.resets == resets
        for each in rows:
            assert each.step(np.zeros(2, int))[1].tolist() == [0, 0]
    finally:
        env.close()
        for each in rows:
            each.close()


@pytest.mark.parametrize("make", ENDLESS)
def test_infos_that_contain_themselves_are_the_errors_of_their_environment(
    make: Callable[[], Any], told: Server
) -> None:
    for connect in (
        lambda: make_remote(told.address),
        lambda: RemoteVectorEnv(told.address, 2, num_batches=0),
        lambda: RemoteVectorEnv(told.address, 2, num_batches=1),
    ):
        Told.info = None
        env: Any = connect()
        try:
            Told.info = make
            with pytest.raises(FAILURES, match=r"(?s)INTERNAL.*contains itself"):
                env.reset()
        finally:
            env.close()


def test_infos_that_are_deep_are_their_text(told: Server) -> None:
    env = make_remote(told.address)
    try:
        Told.info = lambda: deep(9)
        _, info = env.reset()
        assert info["own"] == [[[[[["[[[1]]]"]]]]]]
        Told.info = deep
        _, info = env.reset()
        assert info["own"][0][0][0][0][0][0].startswith("[[[")
    finally:
        env.close()


@pytest.mark.parametrize("make", ENDLESS)
def test_infos_of_the_server_in_one_file(make: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="contains itself"):
        dm_env_rpc_server._encode({"own": make()})
    assert dm_env_rpc_server._encode(deep(9)) == '[[[[[[[["[1]"]]]]]]]]'
    assert "a list of thousands of levels" in dm_env_rpc_server._encode(deep())
