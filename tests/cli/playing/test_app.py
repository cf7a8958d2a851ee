"""The application of `play` at real servers, without a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import dm_env
import gymnasium
import numpy as np
import PIL.Image
import pytest
from dm_env import specs

pytest.importorskip("textual")
from textual import events
from textual_image.widget import SixelImage

from dm_env_rpc_client.adaptors.gymnasium import to_dm_env
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.playing import player
from dm_env_rpc_client.cli.playing.app import describe
from dm_env_rpc_client.cli.playing.view import Gallery
from dm_env_rpc_client.cli.stepping.watch import Watch
from dm_env_rpc_client.client.connection import connect
from dm_env_rpc_client.environment.worlds import join_world, make
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError, SpecError
from dm_env_rpc_client.server import Catch, Race, Server
from tests.cli.playing.screens import in_event_loop, playing
from tests.support.environments import Broken, Constant, Robot
from tests.support.scripted import settles_async
from tests.support.stopwatch import Stopwatch


@in_event_loop
async def test_keys_take_steps_and_begin_episodes() -> None:
    async with playing(Catch, create={"rows": 6, "seed": 3}) as game:
        shown = await game.sees("episode 1 +step 0 +return 0\n")
        for part in (game.server.address, "paddle = 1", "press 0/←, 1/↓, 2/→"):
            await game.sees(part)
        await game.press("left")
        shown = await game.sees(r"step 1 +reward 0 .*\nafter paddle=0")
        assert "waiting" not in shown
        await game.press("2", "space")
        await game.sees(r"step 3 .*\nafter paddle=1")
        await game.press("space", "enter")
        await game.sees("step 5 +reward -?1 +return -?1 +discount 0 +over: terminated")
        await game.sees("space: next episode")
        await game.press("space")
        await game.sees("episode 2 +step 0")
        await game.press("space", "r")
        await game.sees("episode 3 +step 0")
        await game.press("1")
        await game.sees("step 1 ")
        await game.press("q")
        assert await game.ends() is None
        summary = game.app.player.summary()
        assert summary.startswith("1 episode finished, the last with return")
        assert summary.endswith("; 7 steps")


@in_event_loop
async def test_several_actions_are_set_one_by_one_and_sent_together() -> None:
    async with playing(Robot, create={"joints": 2}, keys=["w=arm.torque[1]:+=0.25"]) as game:
        await game.sees(r"> arm.torque\[0\] +=")
        for part in (
            "camera.rgb",
            "camera.depth",
            "joints.0 0",
            "w: arm.torque",
            "☐ off",
        ):
            await game.sees(part)
        await game.press("+", "+", "w", "tab", "tab")
        await game.sees("1/→ for on")
        await game.press("1")
        await game.sees(r"  arm.torque\[0\] = ─+●─+ 0.2\n")
        await game.sees(r"  arm.torque\[1\] = ─+●─+ 0.25")
        await game.sees(r"> arm.grip      = ☑ on")
        await game.press("t", "h", "q", "space", "backspace", "backspace", "i")
        await game.sees("speech        = 'hi_'")
        game.app.post_message(events.Paste("!\nthere"))
        await game.sees("speech        = 'hi! there_'")
        await game.press(*["backspace"] * 7)
        await game.press("enter")
        assert "step 0" in await game.sees("speech        = 'hi'"), "nothing was sent so far"
        await game.press("space")
        await game.sees("reward 0.45")
        await game.sees("after arm.torque")
        await game.sees(r"heard \['hi' 'HI'\]")
        await game.press("shift+tab")
        await game.sees(r"> arm.torque\[1\]")


@in_event_loop
async def test_real_time_pauses_and_waits_at_the_end() -> None:
    async with playing(Catch, create={"rows": 8}, rate=20, keys=["idle=2"]) as game:
        await game.sees("step [12] .*20 steps/s")
        await game.sees("after paddle=2")
        await game.press("p")
        shown = await game.sees("paused")
        assert "p: continue" in shown
        await game.press("p")
        await game.sees("over: terminated")
        await game.press("r")
        await game.sees("episode 2 .*over: terminated")
        assert game.app.player.progress.total_steps == 14


@in_event_loop
async def test_what_the_environment_refuses_is_shown_and_the_game_goes_on() -> None:
    async with playing(Broken, create={"at": "step"}) as game:
        await game.sees("step 0")
        await game.press("space")
        await game.sees("broken in step")
        await game.press("r")
        assert "broken" not in await game.sees("episode 2 +step 0")


@in_event_loop
async def test_an_environment_that_refuses_to_begin_ends_the_game() -> None:
    async with playing(Broken, create={"at": "reset"}) as game:
        assert isinstance(await game.ends(), DmEnvRpcError)


@in_event_loop
async def test_a_server_that_goes_away_ends_the_game() -> None:
    async with playing(Catch) as game:
        await game.sees("step 0")
        game.server.stop(0.0)
        await game.press("space")
        assert isinstance(await game.ends(), ConnectionLostError)


@pytest.mark.parametrize(("key", "error"), [("q", type(None)), ("ctrl+c", KeyboardInterrupt)])
@in_event_loop
async def test_a_game_that_lacks_players_says_so_and_hears_keys(key: str, error: type) -> None:
    async with playing(Race, create={"players": 3}) as game:
        await game.sees("waiting: 2 more player")
        pressed = Stopwatch()
        await game.press(key)
        assert isinstance(await game.ends(), error)
        assert pressed.within(3)


@in_event_loop
async def test_a_game_begins_when_all_have_joined_and_waits_for_their_steps() -> None:
    async with playing(Race()) as game:
        await game.sees("waiting: 1 more player")
        with connect(game.server.address) as connection, join_world(connection, "") as other:
            begun = asyncio.get_running_loop().run_in_executor(None, other.reset)
            await game.sees("step 0")
            await begun
            await game.press("1")
            await game.sees(r"has not stepped, \d+ s")
            pressed = Stopwatch()
            await game.press("q")
            assert await game.ends() is None
            assert pressed.within(3)


class Changing(dm_env.Environment):
    """Has two actions instead of one after each reset."""

    def __init__(self, actions: int = 1):
        self._actions = actions

    def action_spec(self) -> dict[str, specs.Array]:
        return {name: specs.DiscreteArray(2) for name in "ab"[: self._actions]}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"flags": specs.Array((3,), bool), "done": specs.Array((), bool)}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"flags": np.array([True, False, True]), "done": np.bool_(False)})

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(0.0, self.reset().observation)


@in_event_loop
async def test_a_reset_may_change_the_actions_and_flags_are_shown_as_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with playing(Changing) as game:
        await game.sees("  a = 0")
        await game.sees("done ☐ off")
        await game.sees("flags ☑☐☑")
        env = game.app.player._env
        reset = env.reset
        monkeypatch.setattr(env, "reset", lambda *_: reset({"actions": 2}))
        await game.press("r")
        await game.sees(r"> a = 0\n(.*\n)?.*  b = 0")


@in_event_loop
async def test_what_the_numbers_of_a_board_mean_is_said() -> None:
    squares = {"squares": specs.BoundedArray((3, 3), np.int8, -1, 1)}
    board = Constant(squares, {"squares": np.diag([-1, 0, 1]).astype(np.int8)})
    async with playing(lambda: board) as game:
        await game.sees(r"squares: numbers are values, empty cells are 0(.*\n)+ *-1(.*\n)+ +1\n")


class Rendered(gymnasium.Env[Any, Any]):
    """Observes a number, and renders a gradient."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as Gymnasium declares it
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, breaks: bool = False):
        if render_mode and breaks:
            raise ValueError("pygame is not installed")
        self.render_mode = render_mode

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, action, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return np.tile(np.arange(0, 240, 4, dtype=np.uint8)[:, None, None], (1, 80, 3))


@pytest.mark.parametrize("create", [{}, {"render_mode": "rgb_array"}])
@in_event_loop
async def test_without_an_image_observation_the_rendered_picture_is_shown(
    create: dict[str, Any],
) -> None:
    async with playing(Rendered, create=create) as game:
        await game.sees("▀" * 45)
        await game.press("1")
        await game.sees("observation \\[1. 1.\\]")
        await game.press("r")
        await game.sees("episode 2")
        assert game.app.player.frame.shape == (60, 80, 3)


@in_event_loop
async def test_an_environment_that_cannot_render_is_played_without_a_picture() -> None:
    async with playing(Rendered, create={"breaks": True}) as game:
        assert "▀" not in await game.sees("step 0")
        await game.press("space")
        await game.sees("step 1")


class Misleading(Changing):
    """Has another property of the name that `play` knows."""

    def __init__(self) -> None:
        super().__init__()
        self.properties = {"gymnasium": lambda: "no JSON"}


@in_event_loop
async def test_properties_of_other_kinds_are_none_of_the_games() -> None:
    async with playing(Misleading) as game:
        await game.sees("step 0")
        assert game.app.player.frame is None


def test_the_keys_of_properties_are_those_of_the_bridge() -> None:
    assert player._FRAME == to_dm_env.FRAME
    assert player._GYMNASIUM == to_dm_env.DESCRIPTION


@pytest.mark.parametrize("size", [(80, 24), (40, 20), (2, 1)])
@in_event_loop
async def test_the_layout_follows_the_size(size: tuple[int, int]) -> None:
    async with playing(Robot, create={"joints": 16}) as game:
        await game.sees("step 0")
        await game.resize(*size)
        await game.press("shift+tab", "space", "shift+tab", "shift+tab", "shift+tab")
        gallery, side = game.app.query_one(Gallery), game.app.query_one("#side")
        if size[0] >= 80:
            assert await settles_async(lambda: gallery.region.right <= side.region.x)
            await game.sees(r"> arm.torque\[15\]")
        elif size == (40, 20):
            assert await settles_async(lambda: gallery.region.bottom <= side.region.y)
        await game.resize(90, 30)
        await game.sees("step 1")


@in_event_loop
async def test_images_are_given_to_the_terminal_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.cli.playing.app.shows_images", lambda: True)
    monkeypatch.setattr("textual_image.widget.Image", SixelImage)
    async with playing(Catch) as game:
        await game.sees("step 0")
        assert await settles_async(lambda: len(game.app.query(SixelImage)) == 1)
        shown = game.app.query_one(SixelImage)
        assert await settles_async(lambda: shown.image is not None)
        before = shown.image
        assert isinstance(before, PIL.Image.Image)
        assert max(before.size) >= 1024
        assert not game.app.query(".drawn")
        await game.press("1")
        assert await settles_async(lambda: shown.image is not before)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float32(0.1), "0.1"),
        (np.bool_(True), "☑ on"),
        ("two\nlines \x1b[2J", r"'two\nlines \x1b[2J'"),
        (np.array(["a", "b"], object), "['a' 'b']"),
        (np.arange(100), "[ 0 1 2 ... 97 98 99]"),
        (np.zeros((3, 4), bool), "☐" * 12),
        (np.ones(100, bool), "[ True True True ... True True True]"),
    ],
)
def test_observations_that_are_no_pictures(value: Any, shown: str) -> None:
    assert describe(value) == shown


def test_a_binding_that_fits_no_action_is_an_error_before_the_game() -> None:
    async def act() -> None:
        async with playing(Catch, keys=["a=7"]):
            pass

    with pytest.raises(UsageError, match="paddle is one of 0, 1, 2"):
        asyncio.run(act())


@in_event_loop
async def test_a_row_of_a_batch_is_played() -> None:
    create = {"num_envs": 3, "rows.seed": [3, 4, 5]}
    async with playing(Catch, create=create, row=1) as game:
        shown = await game.sees("episode 1 +step 0 +return 0\n")
        assert "step_type" not in shown
        await game.sees("press 0/←, 1/↓, 2/→")
        for step in range(1, 9):
            await game.press("left")
            await game.sees(rf"step {step} +reward 0 .*\nafter paddle=0")
        await game.press("left")
        await game.sees("step 9 +reward -?1 +return -?1 +discount 0 +over: terminated")
        await game.press("space")
        await game.sees("episode 2 +step 0")
        await game.press("left", "r")
        await game.sees("episode 3 +step 0")


@in_event_loop
async def test_frames_of_a_vector_environment_are_those_of_the_row() -> None:
    def carts(num_envs: int) -> Any:
        return gymnasium.make_vec(
            "CartPole-v1", num_envs, vectorization_mode="sync", render_mode="rgb_array"
        )

    async with playing(carts, create={"num_envs": 2}, row=1) as game:
        await game.sees("episode 1 +step 0")
        await game.press("1")
        await game.sees("step 1 +reward 1")
        assert game.app.player.frame.shape == (400, 600, 3)
        await game.sees("▀|▌|▚")


@pytest.mark.parametrize(
    ("settings", "text"),
    [({}, r"world .* is not batched"), ({"num_envs": 2}, "the batch has rows 0 to 1")],
)
def test_a_row_that_is_not_there_is_an_error(
    catch_server: Server, settings: dict[str, Any], text: str
) -> None:
    with (
        make(catch_server.address, settings) as env,
        Watch(env) as watch,
        pytest.raises(SpecError, match=f"there is no row 2: {text}"),
    ):
        player.Player(env, True, watch, 2)
