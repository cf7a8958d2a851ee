"""Tensors against their specs."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from dm_env_rpc_client import dm_env_rpc_pb2 as pb


class RequestError(Exception):
    """A request that is refused: becomes the error of its answer."""

    def __init__(
        self, message: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    ) -> None:
        super().__init__(message)
        self.code: int = code.value[0]


def _product(shape: Iterable[int]) -> int:
    product = 1
    for size in shape:
        product *= max(size, 1) if size < 0 else size
    return product


def conform(spec: pb.TensorSpec, tensor: pb.Tensor) -> None:
    """Checks dtype and shape of a tensor and writes its shape out in full."""
    field = tensor.WhichOneof("payload")
    expected = pb.Tensor.DESCRIPTOR.fields_by_number[spec.dtype].name
    if field != expected:
        raise RequestError(f"{spec.name}: is {field}, its spec {expected}")
    count = len(getattr(tensor, field).array)
    known = _product(tensor.shape)
    variable = [axis for axis, size in enumerate(tensor.shape) if size < 0]
    if len(variable) > 1:
        raise RequestError(f"{spec.name}: two variable lengths")
    for axis in variable:
        tensor.shape[axis] = 1 if count == 1 or not known else count // known
    if count not in (1, _product(tensor.shape)):
        raise RequestError(f"{spec.name}: {count} elements do not fill {list(tensor.shape)}")
    if len(tensor.shape) != len(spec.shape) or any(
        mine not in (its, -1) for mine, its in zip(spec.shape, tensor.shape, strict=True)
    ):
        raise RequestError(
            f"{spec.name}: has shape {list(tensor.shape)}, its spec {list(spec.shape)}"
        )


def initial(spec: pb.TensorSpec) -> pb.Tensor:
    """What is observed before anybody has acted: one zero for all, or nothing."""
    tensor = pb.Tensor(shape=[max(size, 0) for size in spec.shape])
    array = getattr(tensor, pb.Tensor.DESCRIPTOR.fields_by_number[spec.dtype].name)
    array.SetInParent()
    if all(tensor.shape):
        if isinstance(array.array, bytes):
            array.array = bytes(1)
        elif spec.dtype == pb.PROTO:
            array.array.add()
        else:
            array.array.append("" if spec.dtype == pb.STRING else 0)
    return tensor


def integers(name: str, tensor: pb.Tensor) -> list[int]:
    """The value of a setting."""
    field = tensor.WhichOneof("payload")
    if field not in ("int32s", "int64s"):
        raise RequestError(f"{name}: is int32 or int64")
    return list(getattr(tensor, field).array)
