"""Packing and unpacking as PyPI's dm-env-rpc does it."""

from __future__ import annotations

from typing import Any

import pytest
from dm_env_rpc.v1 import tensor_utils
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import SpecError, pack_tensor, unpack_tensor
from tests.tensors import strategies
from tests.tensors.values import packed, record


@given(strategies.arrays(min_dims=0))
def test_the_peer_packs_the_same(array: strategies.Array) -> None:
    assert pack_tensor(array).SerializeToString(deterministic=True) == tensor_utils.pack_tensor(
        array
    ).SerializeToString(deterministic=True)


@given(strategies.arrays(min_dims=0), st.booleans())
def test_the_peer_unpacks_the_same(array: strategies.Array, compress: bool) -> None:
    tensor = pack_tensor(array, try_compress=compress)
    assert strategies.same_bits(unpack_tensor(tensor), tensor_utils.unpack_tensor(tensor))


@given(strategies.arrays(), st.data())
def test_the_peer_infers_the_same_length(array: strategies.Array, data: Any) -> None:
    tensor = pack_tensor(array)
    axis = data.draw(st.integers(0, array.ndim - 1))
    tensor.shape[axis] = -1
    try:
        theirs = tensor_utils.unpack_tensor(tensor)
    except ValueError:
        with pytest.raises(SpecError):
            unpack_tensor(tensor)
    else:
        assert strategies.same_bits(unpack_tensor(tensor), theirs)


@given(
    st.lists(strategies.strings(), min_size=1, max_size=5).filter(
        lambda x: not any("\0" in s for s in x)
    )
)
def test_the_peer_and_strings(texts: list[str]) -> None:
    assert pack_tensor(texts) == tensor_utils.pack_tensor(texts)
    assert unpack_tensor(pack_tensor(texts)).tolist() == (
        tensor_utils.unpack_tensor(pack_tensor(texts)).tolist()
    )


def test_the_peer_and_protos() -> None:
    # Not Structs: the peer takes their keys for elements.
    messages = [struct_pb2.Value(number_value=1), packed(record(b=2))]
    theirs = tensor_utils.pack_tensor(messages)
    assert pack_tensor(messages) == theirs
    assert unpack_tensor(theirs).tolist() == tensor_utils.unpack_tensor(theirs).tolist()


@pytest.mark.parametrize(
    "value", [3, 2.5, True, "x", [1, 2], [1, 2.5], [[1.5], [2.5]], 2**63, [True, False]]
)
def test_the_peer_and_plain_values(value: Any) -> None:
    assert pack_tensor(value) == tensor_utils.pack_tensor(value)
