"""Values in infos and options are what they were, or their `repr`, and nothing is made up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client import DmEnvRpcError, EnvironmentsFailedError
from dm_env_rpc_client.adaptors.gymnasium import make_remote, value_json
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve

VALUES: dict[str, Any] = {
    "a masked array": np.ma.MaskedArray([1, 2, 3], [False, True, False]),
    "a masked array with a fill value": np.ma.MaskedArray(
        [1.5, 2.5], [True, False], fill_value=-7.0
    ),
    "a masked array of two axes": np.ma.MaskedArray(np.arange(4).reshape(2, 2), np.eye(2) > 0),
    "a masked array without a mask": np.ma.MaskedArray([1, 2]),
    "a masked array that is all masked": np.ma.MaskedArray([1, 2], True),
    "a masked array of texts": np.ma.MaskedArray(["ab", "cd"], [True, False], fill_value="zz"),
    "a masked array of complex numbers": np.ma.MaskedArray([1j, 2.0], [True, False]),
    "masked": np.ma.masked,
    "complex64": np.complex64(1 + 2j),
    "complex128": np.complex128(1 - 2j),
    "a complex number of Python": 1 + 2j,
    "an infinite one": complex("inf"),
    "an array of complex64": np.array([[1 + 2j], [3]], np.complex64),
    "an array of no complex numbers": np.zeros((0, 2), np.complex128),
    "an array of complex numbers of no axes": np.array(1j),
    "an array in another order of bytes": np.array([1 + 2j, 3], ">c8"),
    "a date": np.datetime64("2020-01-01"),
    "a time": np.datetime64("2020-01-01T10:20:30.123456789"),
    "no time": np.datetime64("NaT", "s"),
    "a span of time": np.timedelta64(5, "s"),
    "a span of 25 seconds": np.array("2020-01-01T00", "M8[25s]")[()],
    "an array of dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "an array of spans": np.array([[1, 2]], "m8[ms]"),
    "an array of bytes": np.array([b"ab", b"c\x00d"]),
    "a large integer": 10**30,
    "a small integer": -(10**30),
    "a long double": np.longdouble(1.5),
    "an array of long doubles": np.array([1.5, 2.5], np.longdouble),
    "float16": np.float16(1.5),
}

REPRS: dict[str, Any] = {
    "a record": np.array([(1, 2)], "i4,i4"),
    "a masked record": np.ma.MaskedArray([(1, 2)], [(True, False)], dtype="i4,i4"),
    "a void": np.void(b"ab"),
    "a set": {1},
    "a class": dict,
}


def is_same(one: Any, other: Any) -> bool:
    """Whether two values have the same type, dtype, mask and elements; NaN and NaT are equal."""
    if type(one) is not type(other):
        return False
    if one is np.ma.masked:
        return other is np.ma.masked
    if isinstance(one, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(one), np.ma.getmaskarray(other)
        return (
            np.array_equal(*masks)
            and one.dtype == other.dtype
            and np.array_equal(np.asarray(one.data), np.asarray(other.data))
            and bool(one.fill_value == other.fill_value)
        )
    if isinstance(one, np.ndarray | np.generic):
        native = one.dtype.newbyteorder("=")
        if native != other.dtype or one.shape != other.shape:
            return False
        return repr(one.astype(native)) == repr(other)
    return repr(one) == repr(other)


class Telling(gymnasium.Env[Any, Any]):
    """Its infos are a value, or the options of the reset.

    Args:
      value: the value; the options if it is None.
    """

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, value: Any = None, is_first: bool = True):
        self._value, self._is_first = value, is_first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if not self._is_first:
            return 0, {}
        return 0, {"told": options["value"] if self._value is None else self._value}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {"told": self._value}


@contextlib.contextmanager
def _own(make: Callable[[], Any]) -> Iterator[str]:
    with serve(make) as server:
        yield server.address


@contextlib.contextmanager
def _one_file(make: Callable[[], Any]) -> Iterator[str]:
    with dm_env_rpc_server.serve(make, "localhost:0") as server:
        yield server.address


SERVERS = {"own": _own, "one file": _one_file}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    return SERVERS[request.param]


@pytest.mark.parametrize("name", VALUES)
def test_an_info_arrives_as_it_is(server: Any, name: str) -> None:
    with (
        server(lambda: Telling(VALUES[name])) as address,
        contextlib.closing(make_remote(address)) as env,
    ):
        for info in (env.reset()[1], env.step(0)[4]):
            assert is_same(VALUES[name], info["told"]), info


@pytest.mark.parametrize("name", VALUES)
def test_options_arrive_as_they_are(server: Any, name: str) -> None:
    with server(Telling) as address, contextlib.closing(make_remote(address)) as env:
        _, info = env.reset(options={"value": VALUES[name]})
        assert is_same(VALUES[name], info["told"]), info


@pytest.mark.parametrize("name", REPRS)
def test_other_values_are_their_own_repr(server: Any, name: str) -> None:
    with (
        server(lambda: Telling(REPRS[name])) as address,
        contextlib.closing(make_remote(address)) as env,
    ):
        assert env.reset()[1]["told"] == repr(REPRS[name])


@pytest.mark.parametrize("name", ["complex64", "a masked array", "a date"])
def test_an_older_client_gets_the_numbers(name: str) -> None:
    value = VALUES[name]
    text = value_json.encode(value)
    known = json.loads(text)
    for key in ("as", "mask", "fill_value", "scalar"):
        known.pop(key, None)
    found = value_json.decode(json.dumps(known), "it")
    if name == "complex64":
        assert found.tolist() == [1.0, 2.0]
    elif name == "a date":
        assert found == value.astype(np.int64)
    else:
        assert found.tolist() == [1, 2, 3]


BAD: dict[str, dict[str, Any]] = {
    "a mask of another shape": {"mask": {"$": "array", "dtype": "bool", "shape": [1],
                                         "base64": "AA=="}},
    "a mask of numbers": {"mask": 1},
    "a dtype of other elements": {"as": "c16"},
    "a dtype that is none": {"as": "nothing"},
    "a record": {"as": "i4,i4"},
    "objects": {"as": "O"},
    "a void": {"as": "V500000000"},
    "very many bytes": {"as": "S500000000"},
    "no bytes": {"as": "S0"},
    "dates of floats": {"as": "M8[s]"},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_array_of_another_form_is_refused(name: str) -> None:
    value = {"$": "array", "dtype": "float32", "shape": [2], "base64": "AACAPwAAAEA=", **BAD[name]}
    with pytest.raises(ProtocolError, match="it: invalid"):
        value_json.decode(json.dumps(value), "it")
    with pytest.raises(dm_env_rpc_server.Refusal):
        dm_env_rpc_server._decode(json.dumps(value))


@pytest.mark.parametrize("num_batches", [0, 1])
def test_an_integer_that_gymnasium_cannot_stack_is_the_error_of_its_row(num_batches: int) -> None:
    def make(is_large: bool) -> Telling:
        return Telling(10**30 if is_large else 5, is_first=False)

    settings = [{"is_large": False}, {"is_large": True}]
    with (
        serve(make) as server,
        contextlib.closing(
            RemoteVectorEnv(server.address, 2, settings, num_batches=num_batches)
        ) as envs,
    ):
        envs.reset()
        for _ in range(2):
            with pytest.raises(EnvironmentsFailedError, match="OverflowError") as caught:
                envs.step(envs.action_space.sample())
            assert list(caught.value.failures) == [1]


def test_masked_arrays_of_calls_arrive_as_they_are() -> None:
    class Called(Telling):
        def action_masks(self) -> Any:
            return VALUES["a masked array"]

        def echo(self, value: Any) -> Any:
            return value

    with (
        serve(Called, callable_names=["action_masks", "echo"]) as server,
        contextlib.closing(RemoteVectorEnv(server.address, 2, num_batches=0)) as envs,
    ):
        for found in envs.call("action_masks"):
            assert is_same(VALUES["a masked array"], found)
        for found in envs.call("echo", VALUES["complex64"]):
            assert is_same(VALUES["complex64"], found)


def test_json_that_is_too_long_is_still_refused() -> None:
    with (
        serve(lambda: Telling(10**5000)) as server,
        contextlib.closing(make_remote(server.address)) as env,
        pytest.raises(DmEnvRpcError, match="JSON"),
    ):
        env.reset()
