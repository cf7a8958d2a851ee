"""Conversion functions for DataTypes and NumPy dtypes, named as in the reference package."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.codecs import Codec, PayloadMessage, codec_for, codec_of_payload


def data_type_to_np_type(dm_env_rpc_dtype: dm_env_rpc_pb2.DataType | int) -> np.dtype[Any]:
    """Return the NumPy dtype of a DataType.

    Args:
      dm_env_rpc_dtype: a DataType of the protocol, such as `dm_env_rpc_pb2.FLOAT`.

    Returns:
      The dtype, which is `str` for STRING and `object` for PROTO. (`unpack_tensor` returns arrays
      of strings with the dtype object.)

    Raises:
      SpecError: the protocol has no such data type.
    """
    if not isinstance(dm_env_rpc_dtype, int | np.integer):
        raise SpecError(f"expected a DataType number, got {dm_env_rpc_dtype!r}")
    return _np_type(codec_for(int(dm_env_rpc_dtype), "DataType"))


def np_type_to_data_type(np_type: npt.DTypeLike) -> dm_env_rpc_pb2.DataType:
    """Return the DataType of a NumPy dtype; this is the inverse of `data_type_to_np_type`.

    Args:
      np_type: any argument of `np.dtype`, such as `np.float32`.

    Raises:
      SpecError: the protocol has no matching data type, as for 16-bit and complex numbers.
    """
    if isinstance(np_type, int | np.integer):
        raise SpecError(f"expected a NumPy dtype, got the number {np_type!r}")
    return cast("dm_env_rpc_pb2.DataType", codec_for(np_type, "NumPy type").data_type)


def get_tensor_type(tensor_proto: PayloadMessage) -> np.dtype[Any]:
    """Return the NumPy dtype of a Tensor message.

    Args:
      tensor_proto: the message.

    Returns:
      As `data_type_to_np_type`.

    Raises:
      SpecError: the message has no payload.
    """
    return _np_type(codec_of_payload(tensor_proto, "tensor"))


def _np_type(codec: Codec) -> np.dtype[Any]:
    return np.dtype(str) if codec.data_type == dm_env_rpc_pb2.STRING else codec.dtype
