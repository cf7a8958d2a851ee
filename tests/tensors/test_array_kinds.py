"""Arrays of torch and JAX to NumPy arrays and back; skipped where neither is installed."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from dm_env_rpc_client.tensors import array_kinds, casting
from dm_env_rpc_client.tensors.array_kinds import NUMPY, ArrayKind, from_numpy, kind_of, to_numpy
from tests.support.collector import no_garbage_collection


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class State:
    a: Any
    b: Any


class OfStandard:
    """An array of another library that follows the array API standard."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.device = "own"

    def __array_namespace__(self) -> Any:
        return sys.modules[__name__]

    def __dlpack__(self, **given: Any) -> Any:
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def asarray(array: np.ndarray, device: Any = None) -> OfStandard:
    assert device == "own"
    return OfStandard(array)


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    with no_garbage_collection():
        yield


@pytest.mark.usefixtures("without_garbage_collection")
def test_arrays_are_freed_when_their_owners_drop_them() -> None:
    """Not when garbage is collected: each step of a large batch would take new memory."""
    array = OfStandard(np.ones(3))
    kind = kind_of(array)
    alive: list[weakref.ref[Any]] = [weakref.ref(array), weakref.ref(array.array)]
    found = to_numpy({"a": (array,)}, "observation")
    assert found["a"][0].tolist() == [1, 1, 1]
    del array, found
    assert [each() for each in alive] == [None, None]
    given = np.ones(3)
    alive = [weakref.ref(given)]
    made = from_numpy({"a": [given]}, kind, "action")
    alive.append(weakref.ref(made["a"][0]))
    del given, made
    assert [each() for each in alive] == [None, None]


def test_structures_without_other_arrays_stay_themselves() -> None:
    value = {"a": np.ones(2), "b": (1, "text", None, [np.float32(2)])}
    assert to_numpy(value, "observation") is value
    assert kind_of(value) is NUMPY
    assert from_numpy(value, NUMPY, "action") is value


def test_arrays_of_the_standard_come_and_go_by_dlpack() -> None:
    value = {"a": OfStandard(np.arange(3)), "b": 1}
    kind = kind_of(value)
    assert kind == ArrayKind(__name__, "own")
    np.testing.assert_array_equal(to_numpy(value, "observation")["a"], [0, 1, 2])
    made = from_numpy((np.arange(3), "text"), kind, "action")
    assert type(made[0]) is OfStandard
    assert made[1] == "text"


def test_a_structure_that_contains_itself_is_left() -> None:
    value: dict[str, Any] = {"a": np.ones(2)}
    value["own"] = value
    assert to_numpy(value, "info") is value


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch", reason="torch is not installed")

    def test_to_numpy(self) -> None:
        torch = self.torch
        value = {
            "grad": torch.tensor([1.5, 2.5], requires_grad=True),
            "conj": torch.tensor([1 + 2j]).conj(),
            "neg": torch.tensor([1 + 2j]).conj().imag,
            "bfloat16": torch.tensor([1.5, -3e38], dtype=torch.bfloat16),
            "point": Point(torch.tensor(1), "text"),
            "state": State(torch.tensor([True]), 3),
        }
        got = to_numpy(value, "observation")
        np.testing.assert_array_equal(got["grad"], np.array([1.5, 2.5], np.float32))
        np.testing.assert_array_equal(got["conj"], np.array([1 - 2j], np.complex64))
        np.testing.assert_array_equal(got["neg"], [-2])
        assert got["bfloat16"].dtype == np.float32
        assert got["bfloat16"].tolist() == value["bfloat16"].tolist()
        assert type(got["point"]) is Point
        assert got["point"].x == 1
        assert got["state"]["a"].tolist() == [True]
        assert got["state"]["b"] == 3

    def test_a_value_of_a_spec_may_be_a_tensor(self) -> None:
        torch = self.torch
        for value in (
            torch.tensor([1.5], requires_grad=True),
            torch.tensor([1.5 + 0j]).conj().real,
            torch.tensor([1.5], dtype=torch.bfloat16),
        ):
            assert casting.as_array(value, "action").tolist() == [1.5]

    def test_a_cpu_shares_memory_both_ways(self) -> None:
        tensor = self.torch.zeros(3)
        assert np.shares_memory(to_numpy(tensor, "observation"), tensor.numpy())
        array = np.zeros(3)
        made = from_numpy(array, array_kinds.named("torch", "cpu"), "action")
        array[0] = 5
        assert made[0] == 5

    def test_from_numpy_takes_every_array(self) -> None:
        torch = self.torch
        read_only = np.arange(3)
        read_only.flags.writeable = False
        value = {
            "read_only": read_only,
            "reversed": np.arange(3, dtype=np.uint8)[::-1],
            "big": np.arange(3, dtype=">i4"),
            "scalar": np.float64(0.1),
            "empty": np.empty((0, 3), np.float32),
            "text": np.array("text", object),
        }
        made = from_numpy(value, array_kinds.named("torch"), "action")
        assert made.pop("text") is value.pop("text")
        for name, array in value.items():
            assert type(made[name]) is torch.Tensor
            np.testing.assert_array_equal(made[name].numpy(), array)
            assert made[name].numpy().dtype == np.asarray(array).dtype.newbyteorder("=")

    def test_errors_name_the_array(self) -> None:
        torch = self.torch
        for tensor, text in (
            (torch.ones(2).to_sparse(), "sparse_coo"),
            (torch.ones(2, device="meta"), "no data"),
            (torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        ):
            with pytest.raises(SpecError, match=rf"observation 'a\.0': .*{text}"):
                to_numpy({"a": [tensor]}, "observation")

    def test_arrays_are_moved_as_one_block(self) -> None:
        torch = self.torch
        own = [
            torch.arange(3, dtype=torch.int16),
            torch.arange(6).reshape(2, 3).double().T,
            torch.tensor(True),
            torch.empty(0, 2),
        ]
        blocks = []

        def move(tensors: Any) -> Any:
            blocks.append(array_kinds._torch_block(torch, tensors))
            return blocks[0].clone()

        for part, tensor in zip(array_kinds._moved(own, move), own, strict=True):
            assert part.dtype == tensor.dtype
            assert torch.equal(part, tensor)
        assert [each.numel() for each in blocks] == [3 * 2 + 6 * 8 + 1]


class TestJax:
    @pytest.fixture(autouse=True)
    def _jax(self) -> None:
        self.jax = pytest.importorskip("jax", reason="jax is not installed")

    def test_to_numpy(self) -> None:
        jnp = self.jax.numpy
        value = [jnp.ones(2, jnp.bfloat16), {"b": jnp.arange(3)}]
        got = to_numpy(value, "observation")
        assert (got[0].dtype, got[0].tolist()) == (np.float32, [1, 1])
        np.testing.assert_array_equal(got[1]["b"], np.arange(3, dtype=np.int32))
        assert kind_of(value).library == "jax"

    def test_integers_that_fit_become_32_bits(self) -> None:
        made = from_numpy({"a": np.arange(3)}, array_kinds.named("jax", "cpu"), "action")
        assert made["a"].dtype == np.int32
        with pytest.raises(
            SpecError, match=r"action 'a': 1099511627776 does not fit in int32.*enable_x64"
        ):
            from_numpy({"a": np.array([0, 2**40])}, array_kinds.named("jax"), "action")

    def test_floats_are_rounded_and_do_not_become_infinite(self) -> None:
        kind = array_kinds.named("jax", "cpu")
        made = from_numpy(np.array([0.1, np.inf, np.nan]), kind, "action")
        np.testing.assert_array_equal(made, np.array([0.1, np.inf, np.nan], np.float32))
        with pytest.raises(SpecError, match="action: 1e\\+300 does not fit in float32"):
            from_numpy(np.array([0.1, 1e300]), kind, "action")

    def test_errors_name_the_array(self) -> None:
        for array, text in (
            (self.jax.random.key(0), "PRNGKey"),
            (self.jax.numpy.ones(2, self.jax.numpy.float8_e4m3fn), "float8_e4m3fn"),
        ):
            with pytest.raises(SpecError, match=rf"observation 'a': .*{text}"):
                to_numpy({"a": array}, "observation")

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(SpecError, match="device='cpu:99': jax cannot use this device"):
            array_kinds.named("jax", "cpu:99")


class OfCuda:
    """An array of `FakeCuPy`, which counts how often one leaves the device."""

    copies = 0

    def __init__(self, array: np.ndarray, device: int):
        self.array = array
        self.device = types.SimpleNamespace(id=device)
        self.dtype, self.shape, self.itemsize = array.dtype, array.shape, array.itemsize

    def ravel(self) -> Any:
        return self.array.ravel()

    def get(self) -> Any:
        type(self).copies += 1
        return self.array.copy()


class FakeCuPy(types.ModuleType):
    """The functions of CuPy that are called."""

    ndarray = OfCuda

    def __init__(self) -> None:
        super().__init__("cupy")
        self.current = 0
        self.cuda = types.SimpleNamespace(Device=self._on)

    @contextlib.contextmanager
    def _on(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def concatenate(self, arrays: list[np.ndarray]) -> OfCuda:
        return OfCuda(np.concatenate(arrays), self.current)

    def asarray(self, array: np.ndarray) -> OfCuda:
        return OfCuda(array, self.current)


def test_arrays_of_cupy_leave_their_device_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCuPy())
    own: list[Any] = [np.arange(3, dtype=np.int16), np.ones((2, 2)), np.array(True)]
    value = {"a": OfCuda(own[0], 1), "b": [OfCuda(each, 1) for each in own[1:]]}
    got = to_numpy(value, "observation")
    assert OfCuda.copies == 1
    for found, expected in zip([got["a"], *got["b"]], own, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    kind = kind_of(value)
    assert kind.library == "cupy"
    made = from_numpy({"action": own[0]}, kind, "action")["action"]
    assert made.device.id == 1
    assert kind_of(np.ones(2)) is NUMPY


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
