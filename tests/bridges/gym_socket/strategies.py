"""The JSON of gym-socket-api's spaces, generated."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

# Beyond 1e30 a bound is infinite, for that is how the protocol writes infinity.
BOUNDS = st.floats(-1e29, 1e29) | st.sampled_from([-1e30, 1e30, -1.0, 0.0, 255.0])
INT64 = st.integers(-(2**63), 2**63 - 1)


def number(bound: float) -> int | float:
    """A bound as the bridge writes it: small integers without a period."""
    return int(bound) if abs(bound) < 2**53 and bound.is_integer() else bound


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, Any]:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape)
    ends = draw(st.lists(st.tuples(BOUNDS, BOUNDS), min_size=size, max_size=size))
    # A space of one point at infinity has no elements that JSON can hold.
    low = [number(0.0 if min(pair) == 1e30 else min(pair)) for pair in ends]
    high = [number(0.0 if max(pair) == -1e30 else max(pair)) for pair in ends]
    if not shape and (low, high) == ([0], [255]):
        high = [254]  # A pixel alone has the spec of a Discrete.
    return {"type": "Box", "shape": shape, "low": low, "high": high}


@st.composite
def multi_discretes(draw: st.DrawFn) -> dict[str, Any]:
    pairs = draw(st.lists(st.tuples(INT64, INT64), max_size=4))
    low, high = [min(pair) for pair in pairs], [max(pair) for pair in pairs]
    return {"type": "MultiDiscrete", "low": low, "high": high}


LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    boxes(),
    st.fixed_dictionaries({"type": st.just("Discrete"), "n": st.integers(1, 2**63)}),
    st.fixed_dictionaries({"type": st.just("MultiBinary"), "n": st.integers(0, 6)}),
    multi_discretes(),
)


def tuples_of(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    parts = st.lists(inner, max_size=3)
    return st.fixed_dictionaries({"type": st.just("Tuple"), "subspaces": parts})


SPACES = st.recursive(LEAVES, tuples_of, max_leaves=6)
