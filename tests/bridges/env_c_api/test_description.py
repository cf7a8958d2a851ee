"""Descriptions: pure data, no library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.bridges.env_c_api.description import (
    Description,
    ObservationDescription,
    ObservationType,
    checked_size,
)
from dm_env_rpc_client.errors import ProtocolError

BYTES, STRING = ObservationType.BYTES, ObservationType.STRING


def describe(**kwargs: Any) -> Description:
    nothing: dict[str, Any] = dict.fromkeys(
        ("discrete", "continuous", "texts", "observations", "events"), ()
    )
    return Description(**({"name": "name", "fps": None} | nothing | kwargs))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3), {"o": (2, 3)}),
        ((), {"o": ()}),
        ((0,), {"o": (-1,)}),
        ((4, 0, 3), {"o": (4, -1, 3)}),
        ((0, 0), {"o.values": (-1,), "o.shape": (2,)}),
        (None, {"o.values": (-1,), "o.shape": (-1,)}),
    ],
)
def test_shapes_become_what_the_protocol_can_say(
    shape: tuple[int, ...] | None, expected: dict[str, tuple[int, ...]]
) -> None:
    described = ObservationDescription("o", BYTES, shape)
    assert {name: spec.shape for name, spec in described.specs().items()} == expected
    assert described.is_group == (len(expected) == 2)


@pytest.mark.parametrize("shape", [(0,), (5,), None])
def test_a_string_is_a_scalar_whatever_its_length(shape: tuple[int, ...] | None) -> None:
    described = ObservationDescription("o", STRING, shape)
    (spec,) = described.specs().values()
    assert isinstance(spec, specs.StringArray)
    assert (spec.shape, described.fixed_bytes, described.is_group) == ((), 0, False)
    assert described.value_conforms("text")
    assert not described.value_conforms(np.zeros(3, np.uint8))


def test_sizes_do_not_overflow() -> None:
    assert checked_size((2, 3), 8, 48, "x") == 48
    assert checked_size((), 8, 8, "x") == 8
    assert checked_size((5, 0), 8, 1 << 28, "x") == 0
    for shape in ((2**31 - 1,) * 3, (0, 2**31 - 1, 2**31 - 1), (2**30, 2**30, 16)):
        with pytest.raises(ProtocolError, match=r"^x: shape .* takes"):
            checked_size(shape, 8, 1 << 28, "x")


def test_the_sizes_of_observations_add_up() -> None:
    shapes: list[tuple[int, ...] | None] = [(1 << 27, 1), (2, 0), None, (3, 5)]
    large = [ObservationDescription(str(shape), BYTES, shape) for shape in shapes]
    assert describe(observations=tuple(large)).fixed_bytes == (1 << 27) + 15
