"""Row 59: descriptions of spaces, and specs, that ask for memory, at clients and servers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.adaptors.gymnasium import make_remote, space_json, to_dm_env
from dm_env_rpc_client.adaptors.gymnasium.spaces import Room
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.tensors.memory_limits import DEFAULT
from tests.reliability.hostile.served import heard, measured
from tests.reliability.recording import Seen
from tests.server.structures.hosted import Structured
from tests.support import forks

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(59)

SLACK = 64 << 20


def box(*shape: int, dtype: str = "float64", **more: Any) -> dict[str, Any]:
    integers = {"low": 0, "high": 1}
    return {"type": "Box", "shape": list(shape), "dtype": dtype, **integers, **more}


def discrete(n: int = 2) -> dict[str, Any]:
    return {"type": "Discrete", "n": n, "start": 0, "dtype": "int64"}


def array(count: int, dtype: str = "int8") -> dict[str, Any]:
    text = "AQEB" * (count // 3)
    return {"$": "array", "dtype": dtype, "shape": [count // 3 * 3], "base64": text}


def text(charset: str) -> dict[str, Any]:
    return {"type": "Text", "min_length": 0, "max_length": 1 << 60, "charset": charset}


def nested(kind: str, levels: int) -> dict[str, Any]:
    space = box(1 << 24)
    for _ in range(levels):
        space = {"type": kind, "spaces": [space, space]}
    return space


REFUSED = "refused"

BOMBS: dict[str, tuple[Callable[[], Any], str]] = {
    "a Box that fits no message": (lambda: box(1 << 25), REFUSED),
    "a Box without bounds": (
        lambda: box(1 << 24, low={"$": "float", "value": "-inf"}, dtype="float32"),
        "",
    ),
    "a Box of integers without bounds": (
        lambda: box(1 << 24, dtype="int64", bounded_above=False),
        "",
    ),
    "a Box of too many dimensions": (lambda: box(*[1] * 1000), REFUSED),
    "a Box of 2**62 rows of none": (lambda: box(1 << 62, 0), REFUSED),
    "a Box of a negative size": (lambda: box(-1, 1 << 20), REFUSED),
    "a Box whose bounds are small integers": (
        lambda: box(2_999_997, low=array(3_000_000), high=array(3_000_000)),
        REFUSED,
    ),
    "64 Boxes": (lambda: {"type": "Tuple", "spaces": [box(1 << 18)] * 64}, ""),
    "64 Boxes that fit no message together": (
        lambda: {"type": "Tuple", "spaces": [box(1 << 19)] * 64},
        REFUSED,
    ),
    "a Dict of Boxes": (
        lambda: {"type": "Dict", "spaces": [[f"{n}", box(1 << 16)] for n in range(256)]},
        "",
    ),
    "Boxes in six levels": (lambda: nested("Tuple", 6), REFUSED),
    "a Sequence of Boxes": (lambda: {"type": "Sequence", "space": box(1 << 24), "stack": True}, ""),
    "a Sequence of what fits no message": (
        lambda: {"type": "Sequence", "space": box(1 << 25), "stack": False},
        REFUSED,
    ),
    "a Graph": (
        lambda: {"type": "Graph", "node_space": box(1 << 23), "edge_space": box(1 << 23)},
        "",
    ),
    "a MultiBinary": (lambda: {"type": "MultiBinary", "n": 1 << 24}, ""),
    "a MultiBinary that fits no message": (lambda: {"type": "MultiBinary", "n": 1 << 60}, REFUSED),
    "a MultiDiscrete of small integers": (
        lambda: {
            "type": "MultiDiscrete",
            "dtype": "int64",
            "nvec": array(9_000_000),
            "start": array(9_000_000),
        },
        REFUSED,
    ),
    "a Discrete of 2**200": (lambda: discrete(1 << 200), REFUSED),
    "100,000 Discretes": (lambda: {"type": "Tuple", "spaces": [discrete()] * 100_000}, REFUSED),
    "a Text of half a million characters": (
        lambda: text("".join(map(chr, range(0x20000, 0xA0000)))),
        REFUSED,
    ),
    "8,000 Texts": (lambda: {"type": "Tuple", "spaces": [text("ab" * 100)] * 8000}, REFUSED),
    "an error with a large text": (lambda: {"type": "Box", "shape": ["x" * 10_000_000]}, REFUSED),
}


class Quiet(gymnasium.Env[Any, Any]):
    """Describes itself with a bomb in the place of its observations."""

    metadata = {"render_modes": []}  # noqa: RUF012  # As Gymnasium has it.
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Has environments of Gymnasium describe their observations with a JSON value."""
    describe = to_dm_env.GymnasiumEnvironment._describe

    def use(bomb: Any) -> str:
        def lie(self: Any) -> str:
            return json.dumps({**json.loads(describe(self)), "observation_space": bomb})

        monkeypatch.setattr(to_dm_env.GymnasiumEnvironment, "_describe", lie)
        return json.dumps(bomb)

    return use


def _open(address: str, rows: int, pipe: Any) -> None:
    # What a first environment takes is taken before.
    make_remote(address).close()
    pipe.send("ready")
    pipe.recv()

    def use() -> None:
        if rows:
            RemoteVectorEnv(address, rows, num_batches=0).close()
        else:
            make_remote(address).close()

    measured(use, pipe)


@pytest.fixture(scope="module")
def quiet() -> Iterator[str]:
    with serve(Quiet) as server:
        yield server.address


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("bomb", BOMBS)
def test_opening_takes_little_more_memory_than_the_description(
    bomb: str, rows: int, quiet: str, described: Callable[[Any], str], seen: Seen
) -> None:
    value, expected = BOMBS[bomb]
    with forks.child(_open, quiet, rows) as (_, pipe):
        assert heard(pipe) == "ready"
        text = described(value())
        pipe.send("go")
        outcome, more = heard(pipe)
    if expected:
        assert outcome.startswith("ProtocolError: property 'gymnasium'")
        assert len(outcome) < 600
    else:
        assert outcome == ""
    seen(bombs=1, memory_mib=more / (1 << 20))
    assert more < 4 * len(text) * max(rows, 1) + SLACK


def test_the_error_says_what_does_not_fit_and_what_to_do() -> None:
    room = Room(DEFAULT)
    with pytest.raises(ProtocolError) as it:
        space_json.from_json(box(1 << 25), "property 'gymnasium': observation_space", room)
    for part in ("observation_space", "[33554432]", "float64", "268435456 bytes", "159383552"):
        assert part in str(it.value)
    assert "Limits.message_bytes" in str(it.value)


def never(step: int) -> Any:
    raise AssertionError("never reset")


def made_wide(size: int = 1 << 26, side: str = "observation", bounds: bool = False) -> Structured:
    """Has a spec of an array of a size that is never made."""
    spec: specs.Array = specs.Array((size,), np.float64)
    if bounds:
        spec = specs.BoundedArray((1,), np.float64, 0, 1)
        spec._shape = (size,)
    both = {"wide": spec}, {"small": specs.DiscreteArray(2)}
    return Structured(*(both if side == "observation" else both[::-1]), observe=never)


@pytest.fixture(scope="module")
def wide() -> Iterator[str]:
    with serve(made_wide) as server:
        yield server.address


def _open_specs(address: str, door: str, settings: dict[str, Any], pipe: Any) -> None:
    make(address, {"size": 1}).close()
    make_remote(address, {"size": 1}).close()

    def use() -> None:
        if door == "make":
            make(address, settings).close()
        elif door == "Remote-v0":
            make_remote(address, settings).close()
        else:
            RemoteVectorEnv(address, 4, settings, num_batches=0).close()

    measured(use, pipe)


@pytest.mark.parametrize("door", ["make", "Remote-v0", "RemoteVectorEnv"])
@pytest.mark.parametrize("side", ["observation", "action"])
@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("size", [1 << 26, 1 << 24])
def test_specs_of_large_arrays_take_no_memory(
    size: int, bounds: bool, side: str, door: str, wide: str, seen: Seen
) -> None:
    settings = {"size": size, "side": side, "bounds": bounds}
    with forks.child(_open_specs, wide, door, settings) as (_, pipe):
        outcome, more = heard(pipe)
    if size == 1 << 26:
        uid = re.escape("(uid 1)")
        kind = "SpecError" if door != "RemoteVectorEnv" else "EnvironmentsFailedError"
        taken = r"an array of shape \[67108864\] and dtype float64 takes 536870912"
        pattern = rf"^{kind}: .*{side} 'wide' {uid}: {taken}"
        assert re.search(pattern, outcome), outcome
        assert "Limits.message_bytes" in outcome
        assert ("requested_observations" in outcome) == (side == "observation")
    else:
        assert outcome == ""
    seen(bombs=1, memory_mib=more / (1 << 20))
    assert more < SLACK


def test_an_observation_that_is_not_asked_for_may_have_any_size(wide: str) -> None:
    with (
        make(wide, requested_observations=[]) as env,
        pytest.raises(DmEnvRpcError, match="never reset"),
    ):
        env.reset()
    with pytest.raises(SpecError, match="leave it out with requested_observations"):
        make(wide)
