"""Values in the middle of a sequence: a row takes and refuses what a single environment does."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.protocol.batches import ROW_ERRORS, row_errors
from dm_env_rpc_client.server import Server
from tests.support.serving import serving

SEEN = np.array([1.5, 2.5], np.float32)

OBSERVATIONS: dict[str, Any] = {
    "an array": SEEN,
    "every second element": np.array([1.5, 0.0, 2.5, 0.0], np.float32)[::2],
    "a subclass": SEEN.view(np.recarray),
    "of float64": np.array([1.5, 1e300]),
    "rounded": np.array([0.1, 0.2]),
    "of int64": np.array([1, 2]),
    "a list": [1.5, 2.5],
    "too few": SEEN[:1],
    "too many axes": SEEN[None],
    "a scalar": np.float32(1.5),
    "of objects": np.array(["a", "b"], object),
    "None": None,
}

STRUCTURES: dict[str, Any] = {
    "another key": {"other": SEEN},
    "two keys": {"seen": SEEN, "other": SEEN},
    "no keys": {},
    "in order": collections.OrderedDict(seen=SEEN),
    "no dict": SEEN,
    "a dict": {"seen": SEEN},
}

REWARDS_AND_DISCOUNTS: dict[str, Any] = {
    "an int": (2, 1.0),
    "a float of NumPy": (np.float32(0.5), np.float64(1.0)),
    "an array": (np.array(0.5), np.array(1.0)),
    "a reward of another shape": (np.zeros(1), 1.0),
    "no reward": (None, 1.0),
    "a text": ("2.0", 1.0),
    "an int as the discount": (2.0, 1),
    "another discount": (2.0, 0.5),
    "no discount": (2.0, None),
    "nan": (float("nan"), float("nan")),
}


class Odd(dm_env.Environment):
    """Its third step has odd values, which the next step's overwrite.

    Args:
      kind: of which kind these are.
      name: which they are.
      is_bare: whether its observation is an array, and no dict with one.
    """

    def __init__(self, kind: str, name: str, is_bare: bool):
        self._kind, self._name, self._is_bare = kind, name, is_bare
        self._array = np.zeros(2, np.float32)
        self._count = 0

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._seen(self._array))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        # The same array in all steps.
        self._array += 1
        observation, reward, discount = self._seen(self._array), 2.0, 1.0
        if self._count == 3:
            if self._kind == "observation":
                observation = self._seen(OBSERVATIONS[self._name])
            elif self._kind == "structure":
                observation = STRUCTURES[self._name]
            else:
                reward, discount = REWARDS_AND_DISCOUNTS[self._name]
        return dm_env.TimeStep(dm_env.StepType.MID, reward, discount, observation)

    def action_spec(self) -> specs.Array:
        return specs.DiscreteArray(2, name="action")

    def observation_spec(self) -> Any:
        return self._seen(specs.Array((2,), np.float32, "seen"))

    def _seen(self, value: Any) -> Any:
        return value if self._is_bare else {"seen": value}


server = serving(Odd)


def seen(address: str, settings: Mapping[str, Any]) -> list[Any]:
    """What a client sees of five steps, in each row: a list, or the text of an error."""
    count = settings.get("num_envs", 0)
    found: list[Any] = []
    with make(address, settings) as env:
        env.reset()
        for _ in range(5):
            try:
                timestep = env.step({"action": np.zeros(count, np.int32) if count else 0})
            except DmEnvRpcError as error:
                found.append(str(error))
                continue
            errors = row_errors(timestep.observation.pop(ROW_ERRORS), count) if count else {}
            if errors:
                assert errors == dict.fromkeys(range(count), errors[0])
                found.append(errors[0])
                continue
            (value,) = [each for each in timestep.observation.values() if each.dtype == np.float32]
            reward, discount = timestep.reward, timestep.discount
            if count:
                assert (value == value[0]).all()
                value, reward, discount = value[0], reward[0], np.ravel(discount)[0]
            found.append([*value.tolist(), float(reward), float(discount)])
    return found


KINDS: dict[str, dict[str, Any]] = {
    "observation": OBSERVATIONS,
    "structure": STRUCTURES,
    "reward and discount": REWARDS_AND_DISCOUNTS,
}
CASES = [(kind, name) for kind, names in KINDS.items() for name in names]


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_rows_take_and_refuse_what_a_single_environment_does(
    server: Server, kind: str, name: str, is_bare: bool
) -> None:
    settings = {"kind": kind, "name": name, "is_bare": is_bare}
    single = seen(server.address, settings)
    rows = seen(server.address, {**settings, "num_envs": 2})
    for number, (own, of_row) in enumerate(zip(single, rows, strict=True)):
        if isinstance(own, str):
            assert isinstance(of_row, str)
            # Rows name no uids: theirs are those of the batch.
            assert of_row in re.sub(r" \(uid \d\)", "", own)
        else:
            np.testing.assert_array_equal(of_row, own)
        if number != 2:
            assert own == [number + 1, number + 1, 2.0, 1.0]
