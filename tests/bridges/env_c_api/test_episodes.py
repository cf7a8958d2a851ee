"""What an episode begins with: settings, seeds, and a start that may take several calls."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.errors import LibraryError, SpecError
from tests.bridges.env_c_api.conftest import MakeEnvironment


def test_settings(make: MakeEnvironment, isolated: bool) -> None:
    settings = {"width": 4, "height": "2", "world": {"title": "x"}, "fail_init": False}
    environment = make(settings=settings, isolated=isolated)
    assert environment.observation_spec()["camera"].shape == (2, 4, 3)
    assert environment.read_property("title") == "x"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"color": "red"}, SpecError, "setting 'color': 'red' is invalid: no setting 'color'"),
        ({"width": [1]}, SpecError, "setting 'width' is of type list"),
        ({"fail_init": True}, LibraryError, "init failed with code 7: init was told to fail"),
    ],
)
def test_settings_that_fail_leave_nothing_behind(
    make: MakeEnvironment,
    isolated: bool,
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
    live: ctypes.c_int,
) -> None:
    before = live.value
    with pytest.raises(error, match=message):
        make(settings=settings, isolated=isolated)
    assert live.value == before


def test_start_is_tried_again(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(settings={"eagain": 4}, isolated=isolated)
    # The first episode of this library does not ask for another call, later ones do.
    assert environment.reset().first()
    assert environment.reset().first()
    stubborn = make(settings={"eagain": 4}, start_attempts=4, isolated=isolated)
    stubborn.reset()
    with pytest.raises(LibraryError, match=r"EAGAIN 4 times; its last message: not ready yet"):
        stubborn.reset()
    assert stubborn.reset().first()


def test_start_that_fails(make: MakeEnvironment, isolated: bool) -> None:
    environment = make(settings={"fail_start": True}, isolated=isolated)
    with pytest.raises(LibraryError, match="start failed with code 9: start was told to fail"):
        environment.reset()


def episodes(environment: Any, count: int) -> list[tuple[int, int]]:
    positions = [environment.reset().observation["body"]["position"] for _ in range(count)]
    return [(int(position[0]), int(position[1])) for position in positions]


def test_episodes_and_seeds(make: MakeEnvironment, isolated: bool) -> None:
    counting = make(episode_seeds=40, first_episode=7, isolated=isolated)
    assert episodes(counting, 3) == [(7, 40), (8, 41), (9, 42)]
    arrays = make(episode_seeds=np.array([5, 6]), frames_per_step=np.int64(2), isolated=isolated)
    assert episodes(arrays, 2) == [(0, 5), (1, 6)]
    given = make(episode_seeds=(n * n for n in itertools.count(2)), isolated=isolated)
    assert episodes(given, 3) == [(0, 4), (1, 9), (2, 16)]
    (_, one), (_, other) = episodes(make(isolated=isolated), 2)
    assert one != other


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"episode_seeds": [5]}, "episode_seeds has no seed for episode 1"),
        ({"episode_seeds": [5, 2**31]}, "the seed must be an integer from .*, got 2147483648"),
        ({"episode_seeds": [5, "six"]}, "the seed must be .*, got 'six'"),
        ({"first_episode": 2**31 - 1}, "the episode must be .*, got 2147483648"),
    ],
)
def test_seeds_that_cannot_be(make: MakeEnvironment, kwargs: dict[str, Any], message: str) -> None:
    environment = make(**kwargs)
    environment.reset()
    with pytest.raises(SpecError, match=message):
        environment.reset()
