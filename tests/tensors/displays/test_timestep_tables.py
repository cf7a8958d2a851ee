from __future__ import annotations

import dm_env
import numpy as np

from dm_env_rpc_client import make
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.tensors.displays.values import show_timestep
from tests.support.environments import Robot

ATTACK = "<script>"


def test_each_observation_is_shown_for_what_it_is() -> None:
    with serve(Robot) as server, make(server.address) as env:
        env.reset()
        action = {"arm": {"torque": [1, 0, 1], "grip": True}, "mode": 1, "speech": ATTACK}
        shown = show_timestep(env.step(action))
    assert "TimeStep MID" in shown
    assert shown.count("<img") == 2
    for part in ("camera.rgb", "camera.depth", "joints.2", "reward", "discount", "&lt;script&gt;"):
        assert part in shown
    assert ATTACK not in shown


def test_a_first_step_has_neither_reward_nor_discount(catch_server: Server) -> None:
    with make(catch_server.address) as env:
        shown = show_timestep(env.reset())
    assert "TimeStep FIRST" in shown
    assert shown.count("none") >= 2


def test_steps_stacked_along_time_are_pictures_and_plots(catch_server: Server) -> None:
    with make(catch_server.address, {"rows": 10}) as env:
        shown = show_timestep(env.unroll({"paddle": np.ones(20, int)}))
    assert "20 TimeSteps: 2 FIRST, 16 MID, 2 LAST" in shown
    assert shown.count("<polyline") == 2
    assert shown.count("<img") == 1
    assert "8 of 20, each [10, 5]" in shown


def test_a_step_that_makes_no_sense_is_shown_all_the_same() -> None:
    odd = dm_env.TimeStep(step_type=7, reward=None, discount=None, observation=[])
    assert "TimeStep 7" in show_timestep(odd)
    nested = dm_env.TimeStep(dm_env.StepType.MID, {ATTACK: 1.0}, 1.0, np.zeros(3))
    shown = show_timestep(nested)
    assert ATTACK not in shown
    assert "observation" in shown
