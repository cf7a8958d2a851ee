"""What other code asks of an environment of Gymnasium: render modes, modes of resets, methods."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumProxy, to_dm_env
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import Server, serve
from tests.support.serving import serving
from tests.travelling.environments.usual import Usual

ID = "dm_env_rpc_client.gymnasium:Remote-v0"


class Drawn(Usual):
    """Renders the number of its step; `gymnasium.make` makes lists of that."""

    metadata = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012
    level = 1
    array = np.arange(3)

    def __init__(self, render_mode: str | None = None):
        super().__init__(0)
        self.render_mode = render_mode

    def ends(self) -> tuple[bool, bool]:
        return False, False

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"step {self.steps}"
        return np.full((2, 2, 3), self.steps, np.uint8)

    def action_masks(self) -> Any:
        return np.array([True, self.steps > 0, False])

    def moved(self, by: int, *, times: int = 1) -> int:
        self.steps += by * times
        return self.steps

    def fails(self) -> None:
        raise RuntimeError("it failed")


gymnasium.register("tests/Drawn-v0", f"{__name__}:Drawn")


def drawn(**settings: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("tests/Drawn-v0", **settings)


NAMES = ["action_masks", "moved", "level", "array", "fails", "missing"]


server = serving(drawn, callable_names=NAMES, settable_names=["level"])


@contextlib.contextmanager
def remote(server: Any, **options: Any) -> Iterator[gymnasium.Env[Any, Any]]:
    with contextlib.closing(gymnasium.make(ID, address=server.address, **options)) as env:
        yield env


def frames(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """What an environment renders in the course of some steps."""
    env.reset(seed=1)
    found = [env.render()]
    for _ in range(3):
        env.step(1)
    found.append(env.render())
    env.step(1)
    return [*found, env.render()]


@pytest.mark.parametrize("mode", ["rgb_array", "rgb_array_list", "ansi", "ansi_list"])
def test_render_modes_of_gymnasium_make(server: Server, mode: str) -> None:
    local = drawn(render_mode=mode)
    with remote(server, render_mode=mode) as env:
        assert env.render_mode == local.render_mode == mode
        for found, expected in zip(frames(env), frames(local), strict=True):
            assert type(found) is type(expected)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_batches", [0, 1])
def test_lists_of_frames_of_rows(server: Server, num_batches: int) -> None:
    with contextlib.closing(
        RemoteVectorEnv(server.address, 2, num_batches=num_batches, render_mode="rgb_array_list")
    ) as envs:
        envs.reset(seed=1)
        envs.step(np.array([1, 1]))
        for row in envs.render() or ():
            np.testing.assert_array_equal(row, np.array([np.full((2, 2, 3), n) for n in (0, 1)]))


# Methods and attributes that a server allows.


def test_a_method_is_reached_as_in_process(server: Server) -> None:
    with remote(server) as env:
        env.reset()
        for masks in (
            env.get_wrapper_attr("action_masks")(),
            env.unwrapped.action_masks(),  # type: ignore[attr-defined]
        ):
            assert masks.tolist() == [True, False, False]
        env.step(1)
        assert env.get_wrapper_attr("action_masks")().tolist() == [True, True, False]
        assert env.get_wrapper_attr("moved")(2, times=3) == 7
        assert env.has_wrapper_attr("action_masks")
        with pytest.raises(DmEnvRpcError, match="it failed"):
            env.get_wrapper_attr("fails")()


def test_an_attribute_is_its_value(server: Server) -> None:
    with remote(server) as env:
        assert env.get_wrapper_attr("level") == 1
        np.testing.assert_array_equal(env.get_wrapper_attr("array"), [0, 1, 2])
        assert env.set_wrapper_attr("level", 5)
        assert env.get_wrapper_attr("level") == 5
        env.reset()
        assert env.get_wrapper_attr("level") == 5


def test_other_names_are_those_of_this_object(server: Server) -> None:
    with remote(server) as env:
        for name in ("unknown", "missing", "_step"):
            assert not env.has_wrapper_attr(name)
            with pytest.raises(AttributeError, match=name):
                env.get_wrapper_attr(name)
        with pytest.raises(AttributeError, match=r"callable_names"):
            env.unwrapped.unknown  # type: ignore[attr-defined]  # noqa: B018
        assert env.set_wrapper_attr("own", 3)
        assert env.get_wrapper_attr("own") == 3
        assert not env.unwrapped.set_wrapper_attr("nobody", 3, force=False)


def test_names_are_asked_for_once(server: Server) -> None:
    with remote(server) as env:
        env.reset()
        assert not hasattr(env.unwrapped, "unknown")
        before = server.stats().requests["extension"]
        for _ in range(3):
            assert not hasattr(env.unwrapped, "unknown")
            assert not hasattr(env.unwrapped, "other")
        assert server.stats().requests["extension"] == before


def test_a_closed_environment_has_no_other_attributes(server: Server) -> None:
    with remote(server) as env:
        proxy = env.unwrapped
    assert not hasattr(proxy, "action_masks")


def test_a_copy_reaches_its_own_environment(server: Server) -> None:
    with remote(server) as env:
        copied: Any = pickle.loads(pickle.dumps(env.unwrapped))
        with contextlib.closing(copied):
            copied.reset()
            assert isinstance(copied, GymnasiumProxy)
            assert copied.moved(1) == 1


def test_an_older_server_does_not_say_what_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_dm_env, "kinds_of", lambda *arguments: None)
    with serve(drawn, callable_names=["action_masks"]) as server, remote(server) as env:
        env.reset()
        assert env.get_wrapper_attr("action_masks")().tolist() == [True, False, False]


def test_the_one_file_server_allows_nothing() -> None:
    with dm_env_rpc_server.serve(drawn, "localhost:0") as server, remote(server) as env:
        env.reset()
        assert not env.has_wrapper_attr("action_masks")
