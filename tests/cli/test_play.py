"""`dm-env-rpc play`: its window on real servers, without a screen and on one without a monitor."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pygame
import pytest
from dm_env import specs

from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.gymnasium.test_from_dm_env import Filmed
from tests.cli import commands
from tests.cli.commands import invoke, is_one_line_with
from tests.support import groups
from tests.support.environments import Constant, Robot
from tests.support.scripted import settles
from tests.support.stopwatch import patience
from tests.travelling.environments.usual import Usual

DUMMY = {"SDL_VIDEODRIVER": "dummy"}


class Seen:
    """What an environment that is played was given, and the window that shows it."""

    def __init__(self) -> None:
        self.actions: list[Any] = []
        self.resets = 0

    def of(self, environment: Any) -> Any:
        """Notes the calls of an environment."""
        step, reset = environment.step, environment.reset

        def noted_step(action: Any) -> Any:
            self.actions.append(action)
            return step(action)

        def noted_reset(*args: Any, **kwargs: Any) -> Any:
            self.resets += 1
            return reset(*args, **kwargs)

        environment.step, environment.reset = noted_step, noted_reset
        return environment


def post(kind: int, key: str) -> None:
    pygame.event.post(pygame.event.Event(kind, key=pygame.key.key_code(key)))


def tap(key: str) -> None:
    post(pygame.KEYDOWN, key)
    post(pygame.KEYUP, key)


def is_open() -> bool:
    return bool(pygame.display.get_init() and pygame.display.get_surface() is not None)


def window() -> Any:
    """The pixels of the window, [width, height, 3]."""
    shown = pygame.display.get_surface()
    assert shown is not None
    return pygame.surfarray.array3d(shown)


def play(*arguments: str, hand: Callable[[], object], end: str = "") -> str:
    """Plays in this process, while a hand acts in another thread; returns what was printed.

    Args:
      *arguments: of the command.
      hand: does what a player does, once the window is open; the window is closed after it.
      end: a key that ends the game; if empty, the window is closed.
    """
    failed: list[BaseException] = []

    def act() -> None:
        try:
            assert settles(is_open), "there is no window"
            hand()
        except BaseException as error:
            failed.append(error)
        finally:
            if end:
                tap(end)
            else:
                pygame.event.post(pygame.event.Event(pygame.QUIT))

    thread = threading.Thread(target=act)
    thread.start()
    try:
        result = invoke("play", *arguments, environment=DUMMY)
    finally:
        thread.join()
    if failed:
        raise failed[0]
    assert not pygame.display.get_init(), "the window was closed"
    return result.output


def presses(seen: Seen, *keys: str) -> Callable[[], None]:
    """Returns a hand that taps keys, each after the step of the one before."""

    def press(key: str) -> None:
        before = len(seen.actions) + seen.resets
        tap(key)
        assert settles(lambda: len(seen.actions) + seen.resets > before), key

    def hand() -> None:
        for key in keys:
            press(key)

    return hand


@contextlib.contextmanager
def serving(make: Callable[..., Any]) -> Iterator[tuple[Server, Seen]]:
    seen = Seen()
    with serve(lambda **settings: seen.of(make(**settings))) as server:
        yield server, seen
        assert settles(lambda: server.world_count == 0), "the world was destroyed"


def test_a_game_with_the_keys_of_its_spec() -> None:
    with serving(Catch) as (server, seen):
        hand = presses(seen, "left", "space", "2", "right")
        said = play(server.address, "--create", "rows=4", hand=hand, end="escape")
    assert [int(action["paddle"]) for action in seen.actions] == [0, 1, 2]
    # The key after the end of the episode begins another.
    assert seen.resets == 2
    assert re.search(r"left +paddle 0", said)
    assert re.search(r"escape +ends the game", said)
    assert re.search(r"^1 episode finished, the last with return -?1; 3 steps$", said, re.MULTILINE)


def test_actions_of_several_kinds() -> None:
    with serving(Robot) as (server, seen):
        hand = presses(seen, "left", "d", "z", "3", "space")

        def both() -> None:
            hand()
            post(pygame.KEYDOWN, "right")
            post(pygame.KEYDOWN, "up")
            assert settles(are_both)

        def are_both() -> bool:
            tap("space")
            of_two = np.array([1, 1, 0], np.float32)
            return any(np.array_equal(each["arm"]["torque"], of_two) for each in seen.actions)

        play(server.address, "--create", "joints=3", hand=both)
    left, d, grip, mode, none = seen.actions[:5]
    np.testing.assert_array_equal(left["arm"]["torque"], [-1, 0, 0])
    assert (left["arm"]["grip"], int(left["mode"]), str(left["speech"])) == (False, 0, "")
    np.testing.assert_array_equal(d["arm"]["torque"], [0, 0, 1])
    assert grip["arm"]["grip"]
    np.testing.assert_array_equal(grip["arm"]["torque"], [0, 0, 0])
    assert int(mode["mode"]) == 3
    assert not none["arm"]["grip"]


def test_keys_by_hand() -> None:
    keys = ["k=arm.torque[2]:0.5", "left=mode:2", "space=speech:hello", "idle=arm.grip:true"]
    options = [part for key in keys for part in ("--keys", key)]
    with serving(Robot) as (server, seen):
        said = play(server.address, *options, hand=presses(seen, "k", "left", "space"))
    k, left, space = seen.actions
    np.testing.assert_array_equal(k["arm"]["torque"], [0, 0, 0.5])
    assert (int(left["mode"]), str(space["speech"])) == (2, "hello")
    assert all(each["arm"]["grip"] for each in seen.actions)
    assert re.search(r"k +arm\.torque\[2\] 0\.5", said)


def test_in_real_time_steps_follow_without_a_key_and_a_held_one_counts_in_each() -> None:
    with serving(Catch) as (server, seen):

        def hand() -> None:
            assert settles(lambda: len(seen.actions) > 3)
            post(pygame.KEYDOWN, "right")
            assert settles(lambda: [int(a["paddle"]) for a in seen.actions[-3:]] == [2, 2, 2])
            post(pygame.KEYUP, "right")
            assert settles(lambda: [int(a["paddle"]) for a in seen.actions[-3:]] == [1, 1, 1])
            # A tap that is shorter than a step is not lost.
            tap("left")
            assert settles(lambda: 0 in [int(a["paddle"]) for a in seen.actions])

        play(server.address, "--fps", "20", hand=hand)
    assert seen.resets >= 2, "the next episode began by itself"


def colours() -> set[tuple[int, ...]]:
    return {tuple(map(int, pixel)) for pixel in window().reshape(-1, 3)}


def two_views() -> Constant:
    """A small and a large picture, and a board."""
    observed = {
        "small": (specs.Array((6, 6, 3), np.uint8), 10),
        "view.large": (specs.Array((20, 40, 3), np.uint8), 20),
        "board": (specs.BoundedArray((90, 90), np.int32, 0, 4), 2),
    }
    values = {name: np.full(spec.shape, n, spec.dtype) for name, (spec, n) in observed.items()}
    observations = {name: spec for name, (spec, _) in observed.items()}
    return Constant(observations, values, {"move": specs.DiscreteArray(2)})


@pytest.mark.parametrize(
    ("options", "colour", "size"),
    [
        ([], 20, (640, 320)),
        (["--observation", "small"], 10, (636, 636)),
        (["--observation", "board"], 127, (630, 630)),
    ],
)
def test_the_picture_is_an_observation(options: list[str], colour: int, size: Any) -> None:
    with serving(two_views) as (server, _):

        def hand() -> None:
            assert settles(lambda: colours() == {(colour,) * 3})
            assert window().shape[:2] == size

        play(server.address, *options, hand=hand)


class Painted(Usual):
    """Renders the number of its steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    action_space = gymnasium.spaces.Dict(
        {
            "move": gymnasium.spaces.Discrete(4),
            "force": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    observation_space = gymnasium.spaces.Box(0, 255, (4,), np.uint8)

    def __init__(self, render_mode: str | None = None):
        super().__init__(0)
        self.render_mode = render_mode

    def observe(self) -> Any:
        return np.full(4, self.steps, np.uint8)

    def render(self) -> Any:
        return np.full((48, 64, 3), 100 + self.steps, np.uint8)


def test_a_gymnasium_environment_shows_what_it_renders() -> None:
    seen = Seen()
    with serve(lambda render_mode=None: seen.of(Painted(render_mode))) as server:

        def hand() -> None:
            presses(seen, "3", "up")()
            assert settles(lambda: colours() == {(102,) * 3})
            assert window().shape[:2] == (640, 480)

        said = play(server.address, hand=hand)
        assert settles(lambda: server.world_count == 0)
    three, up = seen.actions
    assert three["move"] == 3
    np.testing.assert_array_equal(up["force"], [0, 1])
    assert up["move"] == 0
    assert "2 steps" in said


def test_a_row_of_a_batch() -> None:
    with serve(Filmed) as server:

        def hand() -> None:
            assert settles(lambda: colours() == {(0, 0, 0), (255, 255, 255)})
            tap("left")
            assert settles(lambda: "step 1" in pygame.display.get_caption()[0])

        said = play(server.address, "--create", "num_envs=3", "--row", "1", hand=hand)
        assert "0 episodes finished; 1 step" in said
        for row, create in (("3", ["--create", "num_envs=3"]), ("1", [])):
            refused = invoke(
                "play", server.address, *create, "--row", row, code=2, environment=DUMMY
            )
            assert "row" in refused.output
        assert server.world_count == 0


WRONG: dict[str, tuple[Sequence[str], str]] = {
    "no such observation": (
        ["--observation", "nothing"],
        "image observations: small, view.large, board",
    ),
    "no such action": (["--keys", "a=jump:1"], "--keys a=jump:1: unknown action 'jump'"),
    "no such value": (["--keys", "a=2"], "--keys a=2: action 'move'"),
    "no such key": (["--keys", "hyper=1"], "unknown key 'hyper'; use a character"),
    "no value": (["--keys", "a"], "expected a key binding like left=0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_and_the_window_and_the_world_are_gone(case: str) -> None:
    options, error = WRONG[case]
    with serve(two_views) as server:
        said = invoke("play", server.address, *options, code=2, environment=DUMMY).output
        assert server.world_count == 0
    assert error in " ".join(said.split())
    assert not pygame.display.get_init()


def test_without_a_picture_it_says_what_to_do() -> None:
    with serve(lambda: Painted("ansi")) as server:
        said = " ".join(invoke("play", server.address, code=2, environment=DUMMY).output.split())
        assert server.world_count == 0
    assert "has no image to show: no observation is an image" in said
    assert "observations: observation uint8 [4]" in said
    assert "Serve the environment with an image among its observations" in said


def test_without_a_display_it_says_what_to_do(tmp_path: Path) -> None:
    # libwayland complains without the last one.
    none = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    environment = {**none, "XDG_RUNTIME_DIR": str(tmp_path)}
    with serve(Catch) as server:
        finished = commands.command("play", server.address, environment=environment)
        is_one_line_with(finished, 2, "play needs a display for its window", "explore(env)")


def test_a_server_that_ends_ends_the_game() -> None:
    with serve(Catch) as server:
        stopping = threading.Thread(target=server.stop)

        def act() -> None:
            assert settles(is_open)
            stopping.start()
            stopping.join()
            tap("left")

        thread = threading.Thread(target=act)
        thread.start()
        result = invoke("play", server.address, code=3, environment=DUMMY)
        thread.join()
    assert result.output.splitlines()[-1].startswith("error: ")
    assert not pygame.display.get_init()


@pytest.fixture
def display() -> Iterator[str]:
    """A screen without a monitor."""
    groups.need("screen")
    reading, writing = os.pipe()
    # It would reset whenever its last client leaves, which may be one that looks for the window.
    command = ["Xvfb", "-noreset", "-nolisten", "tcp", "-displayfd", str(writing)]
    with subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL) as server:
        os.close(writing)
        with os.fdopen(reading) as number:
            yield f":{number.readline().strip()}"
        server.kill()


@pytest.mark.screen
def test_keys_on_a_screen(display: str) -> None:
    environment = {"DISPLAY": display, "SDL_VIDEODRIVER": "x11"}

    def press(key: str) -> None:
        found = ("search", "--sync", "--onlyvisible", "--class", ".")
        keys = ("xdotool", *found, "windowfocus", "--sync", "key", key)
        subprocess.run(
            keys, env={**os.environ, **environment}, check=True, timeout=patience(20),
            capture_output=True,
        )  # fmt: skip

    with serving(Catch) as (server, seen):
        game = commands.started("play", server.address, environment=environment)
        assert settles(lambda: seen.resets > 0)
        press("Left")
        assert settles(lambda: [int(each["paddle"]) for each in seen.actions] == [0])
        press("Escape")
        out, _ = game.communicate(timeout=patience(20))
        assert (game.returncode, out) == (0, "0 episodes finished; 1 step\n")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "error: interrupted"), (signal.SIGTERM, 143, "error: terminated")],
)
def test_the_world_is_destroyed_however_a_game_ends(
    number: signal.Signals, code: int, said: str
) -> None:
    with serve(Catch) as server:
        game = commands.started("play", server.address, environment=DUMMY)
        assert settles(lambda: server.stats().steps > 0)  # The first has begun its episode.
        assert commands.ended(game, number, code).splitlines()[-1] == said
        assert settles(lambda: server.world_count == 0)
