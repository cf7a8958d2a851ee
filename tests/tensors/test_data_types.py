"""The data types under the names of the reference package, compared with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env_rpc.v1 import dm_env_utils, spec_manager, tensor_utils

from dm_env_rpc_client import (
    SpecError,
    SpecManager,
    data_type_to_np_type,
    dm_env_rpc_pb2,
    dm_env_spec,
    get_tensor_type,
    np_type_to_data_type,
    pack_tensor,
    set_bounds,
)

NAMES = [name for name in dm_env_rpc_pb2.DataType.keys() if name != "INVALID_DATA_TYPE"]  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_a_data_type_is_the_references_numpy_type_and_back(name: str) -> None:
    data_type = dm_env_rpc_pb2.DataType.Value(name)
    np_type = data_type_to_np_type(data_type)
    assert np_type == tensor_utils.data_type_to_np_type(data_type)
    assert np_type_to_data_type(np_type) == data_type
    assert np_type_to_data_type(np_type.type) == data_type


@pytest.mark.parametrize("value", [1.5, 2, True, "text", np.zeros(2, np.uint8), np.float32(1)])
def test_a_tensor_has_the_references_type(value: Any) -> None:
    tensor = pack_tensor(value)
    assert get_tensor_type(tensor) == tensor_utils.get_tensor_type(tensor)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: data_type_to_np_type(0), "DataType: 0 is not a data type"),
        (lambda: data_type_to_np_type(np.float32), "expected a DataType number"),  # type: ignore[arg-type]
        (lambda: np_type_to_data_type(np.complex64), "NumPy type: .*complex64.* is not a data"),
        (lambda: np_type_to_data_type("no"), "'no' is not a dtype"),
        (lambda: np_type_to_data_type(3), "NumPy dtype, got the number 3"),  # type: ignore[arg-type]
        (lambda: get_tensor_type(dm_env_rpc_pb2.Tensor()), "no payload"),
    ],
)
def test_what_the_protocol_lacks_is_a_spec_error(wrong: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        wrong()


def test_the_specs_of_a_manager_are_the_references() -> None:
    speed = dm_env_rpc_pb2.TensorSpec(name="arm.speed", dtype=dm_env_rpc_pb2.FLOAT, shape=[2])
    set_bounds(speed, -1.0, 1.0)
    title = dm_env_rpc_pb2.TensorSpec(name="title", dtype=dm_env_rpc_pb2.STRING)
    specs = {3: speed, 5: title}
    found = dm_env_spec(SpecManager(specs))
    assert found == dm_env_utils.dm_env_spec(spec_manager.SpecManager(specs))
    assert list(found) == ["arm.speed", "title"]
