"""What clients of both versions do, with the names that both have; results are JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import dm_env_rpc_client
from dm_env_rpc_client import recording
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"
STEPS = 11


def plain(value: Any) -> Any:
    """A value as JSON, with dtypes; the order of a dict's keys is left out."""
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object:
            return ["object", [plain(each) for each in np.asarray(value).tolist()]]
        return [str(value.dtype), value.tolist()]
    return value


def action(step: int, rows: int | None = None) -> dict[str, Any]:
    shape = () if rows is None else (rows,)
    return {
        "add": np.full(shape, step % 5 - 2),
        "wish": np.full((*shape, 2), step / 2, np.float32),
    }


def timesteps(env: Any, rows: int | None = None, steps: int = STEPS) -> Any:
    found = [env.reset(), *(env.step(action(step, rows)) for step in range(steps))]
    return [plain(tuple(each)) for each in found]


def specs_of(env: Any) -> Any:
    specs = {**dm_env_rpc_client.flatten_dict(env.observation_spec(), "."), **env.action_spec()}
    return {name: repr(specs[name]) for name in sorted(specs)}


def episodes(address: str, **options: Any) -> Any:
    with dm_env_rpc_client.make(address, {"kind": "counter", "start": 3}, **options) as env:
        return [specs_of(env), timesteps(env)]


def over_grpc(address: str) -> Any:
    return episodes(address, transport="grpc")


def ahead(address: str) -> Any:
    with dm_env_rpc_client.make(address, {"kind": "counter"}) as env:
        env.reset()
        futures = [env.step_async(action(step)) for step in range(STEPS)]
        return [plain(tuple(future.result(60))) for future in futures]


def with_asyncio(address: str) -> Any:
    async def main() -> Any:
        env = await dm_env_rpc_client.make_async(address, {"kind": "counter"})
        found = [await env.reset(), *[await env.step(action(step)) for step in range(STEPS)]]
        await env.close()
        return [plain(tuple(each)) for each in found]

    return asyncio.run(main())


def failing(address: str) -> Any:
    with dm_env_rpc_client.make(address, {"kind": "counter", "fails_at": 2}) as env:
        env.reset()
        env.step(action(0))
        try:
            env.step(action(1))
        except dm_env_rpc_client.DmEnvRpcError as error:
            return [error.code, "the physics exploded" in str(error)]
    return "no error"


def a_shared_world(address: str) -> Any:
    with dm_env_rpc_client.connect(address) as connection:
        settings = {"kind": "counter", "start": 2}
        env, name = dm_env_rpc_client.create_and_join_world(connection, settings, {})
        found = timesteps(env, steps=3)
        dm_env_rpc_client.reset_world(connection, name, {"kind": "counter", "start": 2})
        found.append(plain(tuple(env.step(action(0)))))
        env.close()
        dm_env_rpc_client.destroy_world(connection, name)
        return found


def several(address: str) -> Any:
    settings = [{"kind": "counter", "start": start} for start in (1, 5, 9)]
    with dm_env_rpc_client.BatchedEnvironment(address, 3, settings) as envs:
        return timesteps(envs, 3)


def in_gymnasium(address: str, **options: Any) -> Any:
    settings = {"kind": "informed", "first": 4}
    with gymnasium.make(REMOTE, address=address, create_world_settings=settings, **options) as env:
        found = [repr(env.observation_space), repr(env.action_space)]
        for episode in range(2):
            found.append(plain(env.reset(seed=episode, options={"level": [episode, 2.5]})))
            found += [plain(env.step((step, np.array([step / 4])))) for step in range(3)]
    return found


def vector(address: str, **options: Any) -> Any:
    settings = [{"kind": "informed", "first": first} for first in (7, 8)]
    with RemoteVectorEnv(address, 2, settings, **options) as envs:
        found = [repr(envs.single_observation_space), plain(envs.reset(seed=[1, 2]))]
        for step in range(7):
            moves = (np.array([step % 3, 1]), np.array([[step / 8], [0.25]]))
            found.append(plain(envs.step(moves)))
    return found


def a_batch(address: str, **options: Any) -> Any:
    """Of a plain `make`: the rows' errors are in an observation."""
    settings = {
        "kind": "counter",
        "num_envs": 3,
        "rows.start": [1, 5, 9],
        "rows.fails_at": [-1, 2, -1],
    }
    with dm_env_rpc_client.make(address, settings, **options) as env:
        return [specs_of(env), timesteps(env, 3)]


def some_rows(address: str, **options: Any) -> Any:
    """Steps of some rows of a batch, which only the former version takes."""
    settings = {"kind": "counter", "num_envs": 3, "rows.start": [1, 5, 9], "step_mask": True}
    with dm_env_rpc_client.make(address, settings, **options) as env:
        found = [env.reset(), env.step(action(0, 3))]
        for number, stepping in enumerate([[1, 0, 0], [0, 1, 1], [1, 1, 1]]):
            mask = np.array(stepping, bool)
            found.append(env.step({**action(number, 3), "step_mask": mask}))
            found.append(env.reset({"reset_mask": [number == row for row in range(3)]}))
        return [plain(tuple(each)) for each in found]


def a_part_of_a_batch(address: str) -> Any:
    with dm_env_rpc_client.BatchedEnvironment(address, 2, {"kind": "counter"}) as envs:
        envs.reset()
        envs.send(action(0, 1), [1])
        return [envs.recv()[1].tolist()]


def a_batch_in_gymnasium(address: str) -> Any:
    found = []
    for mode in ("NEXT_STEP", "SAME_STEP"):
        settings = {"kind": "informed", "num_envs": 2, "autoreset_mode": mode}
        with dm_env_rpc_client.make(address, settings) as env:
            flat = dm_env_rpc_client.flatten_dict
            moves = {name: np.zeros(spec.shape, spec.dtype)
                     for name, spec in flat(env.action_spec(), ".").items()}  # fmt: skip
            for timestep in [env.reset(), *(env.step(moves) for _ in range(7))]:
                found += [plain(tuple(timestep))]
    return found


def players(address: str) -> Any:
    env = RemoteParallelEnv(address, create_world_settings={"kind": "players"})
    with contextlib.closing(env):
        found = [plain(env.reset(seed=3))]
        while env.agents:
            moves = {
                agent: (len(found) + i) % 4 for i, agent in enumerate(sorted(env.agents, key=str))
            }
            found.append(plain(env.step(moves)))
    return found


ANYWHERE: dict[str, Callable[[str], Any]] = {
    each.__name__: each
    for each in (episodes, over_grpc, ahead, with_asyncio, failing, several, in_gymnasium, vector)
}
"""What every server can, the one-file server too."""

WITH_BATCHES: dict[str, Callable[[str], Any]] = {
    each.__name__: each for each in (a_shared_world, a_batch, a_batch_in_gymnasium, players)
}

ALL = {**ANYWHERE, **WITH_BATCHES}

REFUSED: dict[str, Callable[[str], Any]] = {
    each.__name__: each for each in (some_rows, a_part_of_a_batch)
}
"""What the server refuses now, on purpose: rows of one batch that step apart."""

RECORDED: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (episodes, a_batch, in_gymnasium, vector)
}
"""What is recorded."""

READ: dict[str, Callable[..., Any]] = {**RECORDED, some_rows.__name__: some_rows}
"""The same, with what this version reads and cannot do."""


def read_back(path: Path) -> Any:
    """What a recording has, as JSON."""
    read = recording.read(path)
    found = [
        [
            each.connection.number,
            each.end,
            [plain(tuple(timestep)) for timestep in each.flat_timesteps],
            plain(list(each.flat_actions)),
        ]
        for each in read.episodes
    ]
    return json.loads(json.dumps([read.is_complete, found]))


def record(address: str, folder: Path) -> None:
    """Writes recordings and, beside each, what the client saw and what was read from it."""
    for name, play in READ.items():
        path = folder / f"{name}.mcap"
        path.unlink(missing_ok=True)
        seen = play(address, record=path)
        expected = {"seen": seen, "read": read_back(path)}
        path.with_suffix(".json").write_text(json.dumps(expected) + "\n")


def found_at(address: str, names: Any) -> dict[str, Any]:
    """The results by the names of what was done, as JSON has them."""
    results = {}
    for name in names:
        try:
            results[name] = {**ALL, **REFUSED}[name](address)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    return dict(json.loads(json.dumps(results)))


def main() -> None:
    """Serves until standard input ends, records, or does what is asked at addresses."""
    from dm_env_rpc_client.server import serve
    from tests.interop.former.served import make_environment

    print(dm_env_rpc_client.__file__, flush=True)
    if sys.argv[1] == "serve":
        with serve(make_environment) as server:
            print(server.address, flush=True)
            with contextlib.suppress(EOFError):
                input()
    elif sys.argv[1] == "record":
        with serve(make_environment) as server:
            record(server.address, Path(sys.argv[2]))
    else:
        asked = json.loads(sys.argv[1])
        print(json.dumps({address: found_at(address, names) for address, names in asked.items()}))


if __name__ == "__main__":
    main()
