"""Methods and attributes of environments at a server, as far as the server allows it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from dm_env_rpc_client import DmEnvRpcError, PropertyError, ProtocolError, SpecError, pack_tensor
from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv, make_remote
from dm_env_rpc_client.adaptors.gymnasium.calls import CALL
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch import from_process
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.testing import Response, ScriptedServer
from tests.adaptors.gymnasium.masked import Masked
from tests.adaptors.sameness import same
from tests.environment.one_world import RUNNING, scripted

CALLABLE = ("action_masks", "jump", "level", "length", "np_random")


def sync(num_envs: int = 2) -> Any:
    return SyncVectorEnv([Masked] * num_envs)


@pytest.fixture(params=["batch", "two batches", "streams", "vector", "spread"])
def envs(request: pytest.FixtureRequest) -> Iterator[RemoteVectorEnv]:
    factory = sync if request.param == "vector" else Masked
    number = {"two batches": 2, "streams": 0}.get(request.param)
    with (
        serve(
            factory,
            callable_names=CALLABLE,
            settable_names=["level"],
            processes=2 if request.param == "spread" else None,
        ) as server,
        RemoteVectorEnv(server.address, 4, num_batches=number) as made,
    ):
        yield made


def test_calls_are_those_of_gymnasiums_own_vector_environment(envs: RemoteVectorEnv) -> None:
    own = sync(4)
    for each in (envs, own):
        each.reset(seed=3)
    for _ in range(3):
        masks = envs.call("action_masks")
        assert same(masks, own.call("action_masks"))
        actions = np.array([np.flatnonzero(mask)[0] for mask in masks])
        assert same(envs.step(actions)[0], own.step(actions)[0])
    for arguments in ((2.5,), (1,)):
        found = envs.call("jump", *arguments, where="there")
        assert same(found, own.call("jump", *arguments, where="there"))
    assert envs.get_attr("level") == own.get_attr("level") == (0, 0, 0, 0)
    for given in ([4, 3, 2, 1], 7):
        envs.set_attr("level", given)
        own.set_attr("level", given)
        assert envs.get_attr("level") == own.get_attr("level")
    # Of an object there is its text.
    assert all(text.startswith("Generator") for text in envs.get_attr("np_random"))
    own.close()


def test_what_is_not_allowed_is_refused_and_the_option_is_named(envs: RemoteVectorEnv) -> None:
    with pytest.raises(
        AttributeError, match=r"'close': .*callable_names=\[.*serve\(callable_names=...\)"
    ):
        envs.call("close")
    with pytest.raises(
        AttributeError, match=r"'jump': .*settable_names=\[.*serve\(settable_names=...\)"
    ):
        envs.set_attr("jump", 1)
    with pytest.raises(AttributeError, match="'length'"):
        envs.get_attr("length")
    with pytest.raises(ValueError, match="value for each of 4 environments, got 2"):
        envs.set_attr("level", [1, 2])
    # It is still of use.
    assert envs.reset(seed=1)[0].shape == (4, 4)


def test_what_a_method_raises_is_told(envs: RemoteVectorEnv) -> None:
    with pytest.raises(DmEnvRpcError, match="cannot jump down"):
        envs.call("jump", -1)
    # The arguments were of that call alone.
    with pytest.raises(DmEnvRpcError, match="missing 1 required positional argument"):
        envs.call("jump")


def test_nothing_is_called_while_steps_are_under_way(envs: RemoteVectorEnv) -> None:
    envs.reset(seed=1)
    actions = np.array([np.flatnonzero(mask)[0] for mask in envs.call("action_masks")])
    envs.send(actions)
    with pytest.raises(SpecError, match="have pending steps"):
        envs.call("action_masks")
    envs.recv(4)
    assert len(envs.call("action_masks")) == 4


def test_a_server_allows_nothing_by_default_and_listing_calls_nothing() -> None:
    with (
        serve(Masked) as server,
        RemoteVectorEnv(server.address, 2) as envs,
        pytest.raises(AttributeError, match="callable_names"),
    ):
        envs.call("action_masks")
    with (
        serve(Masked, callable_names=["jump", "calls"]) as server,
        RemoteVectorEnv(server.address, 2) as envs,
    ):
        envs.call("jump", 2)
        properties = PropertiesExtension(envs._worlds.pool.environments[0].connection)
        assert {spec.key for spec in properties.list(CALL)} == {f"{CALL}.calls", f"{CALL}.jump"}
        assert envs.get_attr("calls") == ([2], [2])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "expected a JSON object, got list"),
        ("{", "its JSON"),
        ('{"rows": [2]}', "expected 'rows' to be a list of row numbers from 0 to 1"),
        ('{"rows": [true]}', "expected 'rows' to be a list of row numbers from 0 to 1"),
        ('{"args": {}}', "expected 'args' to be a list"),
        ('{"kwargs": []}', "and 'kwargs' to be a JSON object"),
    ],
)
def test_arguments_that_are_wrong_are_refused(text: str, match: str) -> None:
    with (
        serve(Masked, callable_names=["jump"]) as server,
        RemoteVectorEnv(server.address, 2) as envs,
    ):
        properties = PropertiesExtension(envs._worlds.pool.environments[0].connection)
        with pytest.raises(PropertyError, match=match):
            properties.write(f"{CALL}.jump", text)


class Pool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Has no `call` of its own."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 3
    single_action_space = gymnasium.spaces.Discrete(2)
    single_observation_space = gymnasium.spaces.Discrete(2)
    lives = np.array([3, 1, 2])
    level = np.array(7)
    name = "pool"

    def doubled(self, by: int = 2) -> list[int]:
        return [by * int(each) for each in self.lives]


def test_a_vector_environment_without_calls_is_called_itself() -> None:
    names = ["lives", "level", "name", "doubled", "missing"]
    with (
        serve(Pool, callable_names=names, settable_names=["lives"]) as server,
        RemoteVectorEnv(server.address) as envs,
    ):
        assert envs.get_attr("lives") == (3, 1, 2)
        assert envs.get_attr("name") == ("pool",) * 3
        assert envs.get_attr("level") == (7, 7, 7)  # An array without rows is that of all.
        assert envs.call("doubled", by=3) == (9, 3, 6)
        with pytest.raises(AttributeError, match="Pool has no attribute 'missing'"):
            envs.call("missing")
        with pytest.raises(PropertyError, match="Pool has no method set_attr"):
            envs.set_attr("lives", 3)


def test_names_are_an_option_of_the_command() -> None:
    command = [sys.executable, "-m", "dm_env_rpc_client", "serve"]
    command += ["tests.adaptors.gymnasium.masked:Masked", "--address", "localhost:{port}"]
    command += ["--callable", "action_masks", "--callable", "level", "--settable", "level"]
    with from_process(command) as launch, RemoteVectorEnv(launch.address, 2) as envs:
        envs.set_attr("level", [1, 2])
        assert envs.get_attr("level") == (1, 2)
        assert len(envs.call("action_masks")) == 2


def describing(description: Any) -> ScriptedServer:
    """Has an environment, and answers an extension with a property."""
    response = properties_pb2.PropertyResponse()
    response.read_property.value.CopyFrom(pack_tensor(description))
    answer = Response()
    answer.extension.Pack(response)
    return scripted(answers={"extension": lambda request: answer})


def test_a_server_that_ends_the_stream_is_connected_to_again() -> None:
    with scripted(*[RUNNING] * 3, answers={"extension": None}) as server:
        with make_remote(server.address) as env:
            assert isinstance(env, GymnasiumEnv)
            assert env.reset()[0].tolist() == [1, 2]
        with contextlib.closing(RemoteVectorEnv(server.address, 2)) as envs:
            assert envs.reset()[0].tolist() == [[1, 2]] * 2


@pytest.mark.parametrize("text", ["", "{}", "[", '{"version": 2}', '{"version": 1}', "[1]"])
def test_descriptions_that_are_none_are_errors(text: str) -> None:
    with describing(text) as server:
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            make_remote(server.address)
        with pytest.raises(ProtocolError, match="property 'gymnasium'"):
            RemoteVectorEnv(server.address, 2)
        assert server.errors == []


def test_a_property_of_the_same_name_that_is_no_text() -> None:
    with describing(3) as server, make_remote(server.address) as env:
        assert isinstance(env, GymnasiumEnv)
