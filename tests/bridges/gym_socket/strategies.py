"""Spaces of gym-socket-api and elements of them, generated."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from dm_env_rpc_client.bridges.gym_socket import spaces

# Beyond 1e30 a bound is infinite, for that is how the protocol writes infinity.
BOUNDS = st.floats(-1e29, 1e29) | st.sampled_from([-math.inf, math.inf, -1.0, 0.0, 255.0])
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape)
    ends = draw(st.lists(st.tuples(BOUNDS, BOUNDS), min_size=size, max_size=size))
    low = np.array([min(pair) for pair in ends], np.float64).reshape(shape)
    high = np.array([max(pair) for pair in ends], np.float64).reshape(shape)
    # A space of one point at infinity has no elements that JSON can hold.
    return spaces.Box(np.where(low == np.inf, 0.0, low), np.where(high == -np.inf, 0.0, high))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    pairs = draw(st.lists(st.tuples(INT64, INT64), max_size=4))
    return spaces.MultiDiscrete(tuple(map(min, pairs)), tuple(map(max, pairs)))


LEAVES: st.SearchStrategy[spaces.Space] = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 2**63 - 1)),
    st.builds(spaces.MultiBinary, st.integers(0, 6)),
    multi_discretes(),
)


def tuples_of(inner: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
    return st.lists(inner, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))


SPACES = st.recursive(LEAVES, tuples_of, max_leaves=6)
