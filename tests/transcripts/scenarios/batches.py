"""Rows: masks, seeds, settings and autoreset modes, as each kind of client has them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from tests.transcripts.environments import Counter, Informed
from tests.transcripts.scenarios.playing import acts, nothing, see_steps
from tests.transcripts.scene import Scenario, Scene

MODES = ("NextStep", "SameStep", "Disabled")


def moves(step: int, rows: int = 2) -> tuple[Any, Any]:
    """Actions of rows of `Informed`."""
    return (
        np.array([(step + row) % 3 for row in range(rows)]),
        np.array([[step / 4 - row] for row in range(rows)]),
    )


def informed(scene: Scene, mode: str, num_batches: int | None = None, **settings: Any) -> None:
    """A vector of Gymnasium environments, whose episodes end at different steps."""
    address = scene.serve(Informed)
    each = [{"first": 10 * row, "length": row + 2, **settings} for row in range(2)]
    with RemoteVectorEnv(address, 2, each, autoreset_mode=mode, num_batches=num_batches) as envs:
        scene.see("reset", envs.reset(seed=[4, 9], options={"level": 1}))
        for step in range(4):
            with scene.fails("step"):
                *_, terminated, truncated, _ = found = envs.step(moves(step))
                scene.see("step", found)
                if mode == "Disabled" and (ended := terminated | truncated).any():
                    options = {"reset_mask": ended}
                    scene.see("reset", envs.reset(seed=[None, 3], options=options))


def plain(scene: Scene, mode: str) -> None:
    """A batch of Gymnasium environments, as a client without Gymnasium sees it."""
    settings: dict[str, Any] = {
        "num_envs": 2,
        "autoreset_mode": mode,
        "rows.length": [1, 2],
    }
    with d.make(scene.serve(Informed), settings) as env:
        see_steps(scene, env, lambda step: nothing(env), 3)
        if mode == "DISABLED":
            scene.see("masked", env.reset({"reset_mask": [True, False], "seed": 5}))
            scene.see("step", env.step(nothing(env)))
        if mode == "NEXT_STEP":
            for again in ({"rows.seed": [1, 2]}, {"seed": [1, 2]}, {"seed": 3, "infos": True}):
                with scene.fails("reset"):
                    scene.see("reset", env.reset(again))


def masked_counter(scene: Scene) -> None:
    """Resets of some rows of dm_env environments."""
    with d.make(scene.serve(Counter), {"num_envs": 3, "length": 2}) as env:
        see_steps(scene, env, lambda step: acts(step, 3), 1)
        scene.see("masked", env.reset({"reset_mask": [False, True, False]}))
        scene.see("step", env.step(acts(1, 3)))
        for mask in ([True], [True, False, 2], True, [1, 0, 0], [False] * 3):
            with scene.fails("another mask"):
                scene.see("masked", env.reset({"reset_mask": mask}))


def sending(scene: Scene, num_batches: int | None, rows: int = 4) -> None:
    address = scene.serve(Counter)
    settings = [{"start": 10 * row} for row in range(rows)]
    with d.BatchedEnvironment(address, rows, settings, num_batches=num_batches) as envs:
        envs.reset()
        envs.send(acts(0, rows))
        timestep, ids = envs.recv(rows)
        order = np.argsort(ids)
        scene.see("recv", timestep.reward[order], ids[order])
        envs.send(acts(1, 2), [1, 3])
        timestep, ids = envs.recv(2)
        scene.see("recv", timestep.reward[np.argsort(ids)], np.sort(ids))
        with scene.fails("rows without a step"):
            envs.recv(1)
        with scene.fails("rows that are none"):
            envs.send(acts(1, 2), [0, 9])
        with scene.fails("rows of both batches"):
            envs.send(acts(1, 2), [0, 1])


def resets_with_settings(scene: Scene, num_batches: int | None) -> None:
    with d.BatchedEnvironment(scene.serve(Counter), 2, num_batches=num_batches) as envs:
        scene.see("reset", envs.reset([{"start": 1}, {"start": 2}]))
        scene.see("step", envs.step(acts(1, 2)))
        scene.see("reset", envs.reset({"start": 7}))
        with scene.fails("a row refuses"):
            envs.reset([{"length": 2}, {"length": 0}])
        scene.see("step", envs.step(acts(1, 2)))


def two_batches(scene: Scene) -> None:
    with d.BatchedEnvironment(scene.serve(Counter), 4, {"length": 2}, num_batches=2) as envs:
        see_steps(scene, envs, lambda step: acts(step, 4), 3)


def properties(scene: Scene) -> None:
    with d.connect(scene.serve(Informed)) as connection:
        served = PropertiesExtension(connection)
        scene.see("max", served["batch.max_num_envs"])
        settings = {"num_envs": 2, "autoreset_mode": "SAME_STEP"}
        env, _ = d.create_and_join_world(connection, settings, {})
        for key in ("batch.num_envs", "batch.autoreset_mode", "gymnasium"):
            with scene.fails(key):
                scene.see(key, served[key])
        env.close()


def refused(scene: Scene) -> None:
    address = scene.serve(Counter)
    wrong: dict[str, Any] = {
        "no rows": {"num_envs": 0},
        "too many rows": {"num_envs": 100_000},
        "rows of texts": {"num_envs": "3"},
        "settings of other rows": {"num_envs": 2, "rows.start": [1, 2, 3]},
        "a setting of rows without rows": {"rows.start": [1, 2]},
        "a row that refuses": {"num_envs": 2, "rows.length": [1, 0]},
        "a mode that is none": {"num_envs": 2, "autoreset_mode": "SOMETIMES"},
        "another mode": {"num_envs": 2, "autoreset_mode": "SAME_STEP"},
        "a step mask": {"num_envs": 2, "step_mask": True},
    }
    for name, settings in wrong.items():
        with scene.fails(name):
            d.make(address, settings).close()


ON_STREAMS = {"": None, ", on streams": 0}

SCENARIOS: dict[str, Scenario] = {
    **{
        f"{mode}{where}": Scenario(functools.partial(informed, mode=mode, num_batches=num_batches))
        for mode in MODES
        for where, num_batches in ON_STREAMS.items()
    },
    **{
        f"{mode}, terminated and truncated{where}": Scenario(
            functools.partial(informed, mode=mode, num_batches=num_batches, both=True)
        )
        for mode in ("SameStep",)
        for where, num_batches in ON_STREAMS.items()
    },
    **{
        f"{mode}, rows that raise{where}": Scenario(
            functools.partial(informed, mode=mode, num_batches=num_batches, fails_at=2)
        )
        for mode in MODES
        for where, num_batches in ON_STREAMS.items()
    },
    **{
        f"{mode}, plain": Scenario(functools.partial(plain, mode=mode))
        for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED")
    },
    "reset masks": Scenario(masked_counter),
    "send and recv": Scenario(functools.partial(sending, num_batches=2)),
    "send and recv, on streams": Scenario(functools.partial(sending, num_batches=0)),
    **{
        f"resets with settings{where}": Scenario(
            functools.partial(resets_with_settings, num_batches=num_batches)
        )
        for where, num_batches in ON_STREAMS.items()
    },
    "two batches": Scenario(two_batches),
    "properties": Scenario(properties),
    "refused": Scenario(refused),
}
