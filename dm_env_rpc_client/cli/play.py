"""The command `dm-env-rpc play`, which shows an environment in a window."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import console, print_text, table
from dm_env_rpc_client.cli.failures import UsageError, ending
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.cli.stepping.watch import Watch, on_stderr
from dm_env_rpc_client.extras import importing

if TYPE_CHECKING:
    from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
    from dm_env_rpc_client.adaptors.gymnasium.proxy import GymnasiumProxy
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
    from dm_env_rpc_client.tensors.controls import Change
    from dm_env_rpc_client.tensors.displays.progress import Progress

EXAMPLES = examples(
    "dm-env-rpc play                                   # Catch, an example game",
    "dm-env-rpc play localhost:50051 --create rows=6",
    "dm-env-rpc play localhost:50051 --fps 30 --observation camera.rgb",
    "dm-env-rpc play localhost:50051 --keys a=0 --keys d=2 --keys idle=1",
    "dm-env-rpc play localhost:50051 --create num_envs=4 --row 2    # of a batch",
)

_SIDE, _LARGEST_SIDE = 640, 1280
"""The usual and the maximum length of the longer side of the window, in pixels."""

_POLLS = 60
"""The number of times per second that keys are polled while a step waits for a key."""

_REPEAT_MS = 300, 50
"""The delay before a held key repeats and the interval between repeats, in milliseconds."""

_SPACE, _IDLE = "space", "idle"
_BINDING = re.compile(r"(?P<key>.|[\w ]+)=(?:(?P<action>[^:]+):)?(?P<value>.+)", re.S)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Playing(options.Group):
    """Options for playing.

    Attributes:
      fps: Steps per second, for a game in real time. If not given, every step waits for a key.
      observation: Observation to show, by flat name. If not given, the rendered frame of the
        environment, or else the largest image.
      keys: Key to bind to a value of an action. KEY is a character, a name such as left, space or
        return, or idle for the value while no key is pressed. ACTION is needed only if there are
        several; it may end with the index of an element. Repeatable.
      row: Row of a batched world to show and play.
    """

    fps: Annotated[float | None, typer.Option(min=0.01, max=1000, metavar="STEPS/S")] = None
    observation: Annotated[str | None, typer.Option(metavar="NAME")] = None
    keys: Annotated[list[str] | None, typer.Option(metavar="KEY=[ACTION:]VALUE")] = None
    row: Annotated[int, typer.Option(min=0, metavar="N")] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _World(options.WorldOrCatch):
    """The world to play in; its steps have no time limit.

    Attributes:
      timeout: Timeout in seconds for connecting. Steps may take longer, for instance until all
        players have joined.
    """


@options.with_options
def play(*, playing: _Playing, world: _World) -> None:
    """Play an environment in a window with the keyboard. Needs the extra play.

    Keys are derived from the action specs and printed; space steps without a key. Escape, or
    closing the window, ends the game. In a batched world, one row is shown, and all rows take the
    same actions.
    """
    with importing("play", "play needs"):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        import gymnasium  # noqa: F401
        import pygame
    with contextlib.ExitStack() as stack:
        stack.callback(pygame.quit)
        _open_display()
        env, adaptor = _remote(world, playing, stack)
        with Watch(adaptor, on_stderr) as watch:
            progress = _play(env, world.address, playing, watch)
    count, steps = progress.finished, progress.total_steps
    last = f", the last with return {progress.returns[-1]:g}" if count else ""
    episodes, took = "s" if count != 1 else "", "s" if steps != 1 else ""
    print_text(f"{count} episode{episodes} finished{last}; {steps} step{took}")


def _open_display() -> None:
    """Raise UsageError if there is no screen to open a window on."""
    import pygame

    try:
        pygame.display.init()
        # Without a display, SDL falls back to this driver, which shows nothing.
        is_found = pygame.display.get_driver() != "offscreen" or "SDL_VIDEODRIVER" in os.environ
        reason = "SDL finds none"
    except pygame.error as error:
        is_found, reason = False, str(error)
    if not is_found:
        raise UsageError(
            f"play needs a display for its window: {reason}; run it on a machine with a screen "
            "(over ssh: ssh -X), or use explore(env) in a notebook"
        )


def _remote(
    world: _World, playing: _Playing, stack: contextlib.ExitStack
) -> tuple[GymnasiumEnv | GymnasiumProxy, DmEnvAdaptor]:
    """Return a Remote-v0 environment that renders the frames of a world, and the world's adaptor.

    The exit stack closes the resources of the environment.
    """
    from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
    from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import join_described, largest_image
    from dm_env_rpc_client.adaptors.gymnasium.proxy import GymnasiumProxy
    from dm_env_rpc_client.environment.many.one_row import OneRow, num_envs_of
    from dm_env_rpc_client.tensors.displays.spec_tables import shapes_text

    # Without a limit, because a step may wait for other players.
    env, description = join_described(
        lambda: stack.enter_context(world.environment(request_timeout=None))
    )
    refusal = ""
    if playing.observation is None and description is not None:
        modes = {*description.metadata.get("render_modes", ()), description.render_mode}
        if "rgb_array" in modes:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                proxy = GymnasiumProxy(env, description, "rgb_array")
            if proxy.render_mode is not None:
                return proxy, env
            refusal = "".join(f"; {each.message}" for each in told)
    shown = OneRow(env, playing.row) if playing.row or num_envs_of(env) is not None else env
    name = playing.observation or largest_image(shown.observation_spec())
    if name is None:
        raise UsageError(
            f"the environment at {world.address} has no image to show: no observation is an "
            "image (such as uint8 [height, width, 3]), and the environment does not render as "
            f"rgb_array. Its observations: {shapes_text(shown.observation_spec())}{refusal}. "
            "Serve the environment with an image among its observations, or as a Gymnasium "
            "environment with the render mode rgb_array. In a notebook, "
            "explore(env) shows any environment"
        )
    return GymnasiumEnv(shown, render_mode="rgb_array", render_observation=name), env


def _play(
    env: GymnasiumEnv | GymnasiumProxy, title: str, playing: _Playing, watch: Watch
) -> Progress:
    """Play until the window is closed, and return the progress."""
    import dm_env
    import pygame

    with warnings.catch_warnings():
        # The import warns if matplotlib is missing, which only plots rewards.
        warnings.simplefilter("ignore")
        from gymnasium.utils.play import PlayableGame, display_arr

    from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import element_for
    from dm_env_rpc_client.tensors.controls import ROOT, Keys, changed
    from dm_env_rpc_client.tensors.displays.markup import named_leaves, rebuild
    from dm_env_rpc_client.tensors.displays.progress import Progress

    structure = env.environment.action_spec()
    changes, idle = _bind(named_leaves(structure, ROOT), playing.keys or [])
    keys, progress = Keys(changes), Progress()
    codes = {pygame.key.key_code(name): name for name in changes}
    console.print(table(("key", "action"), [*keys.legend(), ("escape", "ends the game")]))

    def advance() -> Any:
        """Take a step or begin an episode, and return the rendered frame."""
        with watch.step():
            if progress.is_over:
                env.reset()
                progress.begin(dm_env.restart(None))
            else:
                action = rebuild(structure, changed(idle, keys.take()), ROOT)
                _, reward, *ends, _ = env.step(element_for(env, action))
                kind = dm_env.StepType.LAST if any(ends) else dm_env.StepType.MID
                progress.advance(action, dm_env.TimeStep(kind, reward, None, None))
            facts = ", ".join(map(" ".join, progress.facts().items()))
            pygame.display.set_caption(f"{facts} - {title}")
            return env.render()

    picture = advance()
    side = max(picture.shape[:2])
    zoom = max(1, _SIDE // side) if side <= _LARGEST_SIDE else _LARGEST_SIDE / side
    ended: list[BaseException] = []
    # While it opens a window, pygame loses exceptions of signal handlers.
    with ending(ended.append):
        game = PlayableGame(env, {}, zoom)
    if ended:
        raise ended[0]
    if playing.fps is None:
        pygame.key.set_repeat(*_REPEAT_MS)
    clock = pygame.time.Clock()
    while game.running:
        is_due = playing.fps is not None
        for event in pygame.event.get():
            game.process_event(event)
            if event.type == pygame.KEYDOWN and event.key in codes:
                keys.press(codes[event.key])
                is_due = True
            elif event.type == pygame.KEYUP and event.key in codes:
                keys.release(codes[event.key])
        if is_due and game.running:
            picture = advance()
        display_arr(game.screen, picture, game.video_size, transpose=True)
        pygame.display.flip()
        clock.tick(playing.fps or _POLLS)
    return progress


def _bind(
    specs: Mapping[str, Any], texts: Iterable[str]
) -> tuple[dict[str, list[Change]], dict[str, Any]]:
    """Return the effects of keys by pygame name, and the action to take when no key is pressed.

    Raises:
      UsageError: a value of `--keys` is malformed, or names an unknown key.
      SpecError: the action is unknown, or the value does not conform to its spec.
    """
    import pygame

    from dm_env_rpc_client.tensors import controls
    from dm_env_rpc_client.tensors.setting_text import parse_settings

    idle = {name: controls.idle(spec) for name, spec in specs.items()}
    changes = {
        key.removeprefix("Arrow").lower(): change
        for key, change in controls.default_keys(specs).items()
    }
    changes[_SPACE] = []
    for text in texts:
        found = _BINDING.fullmatch(text)
        if found is None:
            raise UsageError(
                f"expected a key binding like left=0, w=throttle:1 or w=arm[0]:0.5, got {text!r}"
            )
        value = parse_settings([f"value={found['value']}"])["value"]
        where = f"--keys {text}: "
        change = controls.checked_change(found["action"] or "", value, specs, where)
        if found["key"] == _IDLE:
            idle = controls.changed(idle, [change])
            continue
        try:
            code = pygame.key.key_code(found["key"])
        except ValueError:
            raise UsageError(
                f"{where}unknown key {found['key']!r}; use a character, {_IDLE!r}, or a "
                "name such as 'left', 'space', 'return' or 'f1'"
            ) from None
        changes[pygame.key.name(code)] = [change]
    return changes, idle
