"""Values in infos and options are what they were, or their `repr`, and nothing is made up."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import logging
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client import DmEnvRpcError, EnvironmentsFailedError
from dm_env_rpc_client.adaptors.gymnasium import make_remote, unsent, value_json
from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve
from tests.support.scripted import settles

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
    "a set": {1, "x", (2, 3.5), b"y", None, np.int8(4), frozenset({5})},
    "an empty set": set(),
    "a frozenset": frozenset({"x", datetime.date(2020, 2, 3)}),
    "a list of sets": [{1}, {"a"}, set()],
    "a date of Python": datetime.date(2020, 2, 3),
    "a time of Python": datetime.datetime(2020, 2, 3, 4, 5, 6, 7),
    "the last time of Python": datetime.datetime.max,
    "a span of Python": datetime.timedelta(-1, 2, 3),
    "the longest span of Python": datetime.timedelta.max,
}


class Mode(str, enum.Enum):  # Older code has this kind of enum.
    RUN = "run"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Long(enum.IntEnum):
    MANY = 10**20


class Colour(enum.Enum):
    RED = 1


class Rate(float, enum.Enum):
    SLOW = 0.5


class Name(str):
    """Its `str` and `repr` are others than its text."""

    def __str__(self) -> str:
        return "a name"

    def __repr__(self) -> str:
        return "<a name>"


class Turn(complex):
    pass


class Key(bytes):
    pass


BASES: dict[str, tuple[Any, Any]] = {
    "a str enum": (Mode.RUN, "run"),
    "an int enum": (Level.LOW, 1),
    "flags": (Bits.A | Bits.B, 3),
    "a float enum": (Rate.SLOW, 0.5),
    "a subclass of str": (Name("bob"), "bob"),
    "a subclass of complex": (Turn(1j), 1j),
    "a long integer": (Long.MANY, 10**20),
    "a subclass of bytes": (Key(b"k"), b"k"),
    "a list": ([Mode.RUN, (Level.LOW,)], ["run", (1,)]),
    "keys": ({Level.LOW: Mode.RUN, Name("n"): 2}, {1: "run", "n": 2}),
    "a set of enums": ({Mode.RUN}, {"run"}),
    "an array of objects": (np.array([Level.LOW, Mode.RUN], object), np.array([1, "run"], object)),
}
"""Values, and what arrives."""


class HashableList(list[int]):
    def __hash__(self) -> int:  # type: ignore[override]
        return 1


REPRS: dict[str, Any] = {
    "a record": np.array([(1, 2)], "i4,i4"),
    "a masked record": np.ma.MaskedArray([(1, 2)], [(True, False)], dtype="i4,i4"),
    "a void": np.void(b"ab"),
    "a class": dict,
    "an enum": Colour.RED,
    "a path": PurePosixPath("/x"),
    "a time with a zone": datetime.datetime(2020, 2, 3, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "a time of a day": datetime.time(1),
    "a generator": np.random.PCG64,
    "keys of a dict": {"x": 1}.keys(),
    "a set of what has no hash as an array": {HashableList([1])},
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
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
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


@pytest.mark.parametrize("name", BASES)
def test_a_subclass_arrives_as_its_base(server: Any, name: str) -> None:
    value, base = BASES[name]
    with (
        server(lambda: Telling(value)) as address,
        contextlib.closing(make_remote(address)) as env,
    ):
        assert is_same(base, env.reset()[1]["told"])
    with server(Telling) as address, contextlib.closing(make_remote(address)) as env:
        _, info = env.reset(options={"value": value})
        assert is_same(base, info["told"]), info


@pytest.mark.parametrize("num_batches", [0, 1])
@pytest.mark.parametrize("name", sorted({*BASES} - {"an array of objects", "a long integer"}))
def test_rows_send_bases_too(name: str, num_batches: int) -> None:
    value, base = BASES[name]
    with (
        serve(lambda: Telling({"in": value})) as server,
        contextlib.closing(RemoteVectorEnv(server.address, 2, num_batches=num_batches)) as envs,
    ):
        _, infos = envs.reset()
        found = infos["told"]["in"]
        if isinstance(base, dict):
            assert found.keys() >= base.keys(), infos
        else:
            assert all(is_same(base, row) for row in found.tolist()), infos


@pytest.mark.parametrize("name", REPRS)
def test_other_values_are_their_own_repr(server: Any, name: str) -> None:
    with (
        server(lambda: Telling(REPRS[name])) as address,
        contextlib.closing(make_remote(address)) as env,
    ):
        assert env.reset()[1]["told"] == repr(REPRS[name])


DEEP: dict[str, Any] = {"level": 9}
for _ in range(9):
    DEEP = {"level": DEEP}


class Called(Telling):
    """Has methods that clients call."""

    level = 1

    def action_masks(self) -> Any:
        return VALUES["a masked array"]

    def echo(self, value: Any, **others: Any) -> Any:
        return value


def _reset(envs: Any, value: Any) -> Any:
    return envs.reset(options={"value": {"of": [0, value]}})


def _call(envs: Any, value: Any) -> Any:
    if hasattr(envs, "call"):
        return envs.call("echo", 1, other={"of": [0, value]})
    return envs.get_wrapper_attr("echo")(1, other={"of": [0, value]})


def _set(envs: Any, value: Any) -> Any:
    if hasattr(envs, "set_attr"):
        return envs.set_attr("level", [2, {"of": [0, value]}])
    return envs.set_wrapper_attr("level", {"of": [0, value]})


GIVEN: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "options": (_reset, r"options\['value'\]\['of'\]\[1\]"),
    "arguments": (_call, r"kwargs\['other'\]\['of'\]\[1\]"),
    "attributes": (_set, r"values\[[01]\]\['of'\]\[1\]"),
}
"""What passes a value to the server, and how an error names the value."""


@contextlib.contextmanager
def _opened(address: str, way: str) -> Iterator[Any]:
    if way == "Remote-v0":
        with contextlib.closing(make_remote(address)) as env:
            yield env
    else:
        num_batches = 1 if way == "a batch" else 0
        with RemoteVectorEnv(address, 2, num_batches=num_batches) as envs:
            yield envs


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("way", ["Remote-v0", "streams", "a batch"])
def test_other_values_of_a_caller_are_refused_before_anything_is_sent(way: str, given: str) -> None:
    names = ["echo", "level"]
    with (
        serve(Called, callable_names=names, settable_names=["level"]) as server,
        _opened(server.address, way) as envs,
    ):
        envs.reset(options={"value": 1})
        give, place = GIVEN[given]
        for name, kind in (
            ("a path", "a PurePosixPath"),
            ("an enum", "a Colour"),
            ("a time with a zone", "a datetime"),
            ("a record", "an array"),
        ):
            with pytest.raises(SpecError, match=f"{place} is {kind}.*cannot be sent; pass only"):
                give(envs, REPRS[name])
        with pytest.raises(SpecError, match=r"is a dict, nested too deeply, .* pass fewer levels"):
            give(envs, DEEP)
        assert envs.step(envs.action_space.sample())[0] is not None
        level = envs.get_attr("level") if way != "Remote-v0" else (envs.level,) * 2
        assert level == (1, 1)


WAYS: dict[str, Callable[[str, Callable[..., Any]], Any]] = {
    "one file": lambda address, play: _played(make_remote(address), play),
    "Remote-v0": lambda address, play: _played(make_remote(address), play),
    "streams": lambda address, play: _played(RemoteVectorEnv(address, 2, num_batches=0), play),
    "a batch": lambda address, play: _played(RemoteVectorEnv(address, 2), play),
    "rows of SB3": lambda address, play: _played(DictVectorEnv(address, 2), play),
}


def _played(env: Any, play: Callable[[Any], Any]) -> Any:
    with contextlib.closing(env):
        return play(env)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """What is logged about values that are replaced; nothing was so far."""
    monkeypatch.setattr(unsent, "_logged", set())
    monkeypatch.setattr(dm_env_rpc_server, "_logged", set())
    caplog.set_level(logging.WARNING, "dm_env_rpc_client.server")

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "its repr" in each.getMessage()]

    return lines


def _steps(env: Any, count: int = 4) -> None:
    if isinstance(env, DictVectorEnv):
        env.reset_each([None] * env.num_envs, None, [{}] * env.num_envs)
        for _ in range(count):
            env.step_each(env.action_space.sample(), [{}] * env.num_envs)
        return
    env.reset()
    for _ in range(count):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("way", WAYS)
def test_what_is_replaced_is_logged_once_by_its_key_and_type(way: str, logged: Any) -> None:
    value = {"set": {1}, "of": [PurePosixPath("/x"), PurePosixPath("/y")]}
    start = _one_file if way == "one file" else _own
    with start(lambda: Telling(value)) as address:
        WAYS[way](address, _steps)
    (line,) = logged()
    assert line.startswith("info['told']['of'][0] is a PurePosixPath, which clients receive as")


def test_worker_processes_log_in_the_server(logged: Any) -> None:
    with (
        serve(TellingAPath, processes=1) as server,
        contextlib.closing(RemoteVectorEnv(server.address, 2)) as envs,
    ):
        _steps(envs)
        assert settles(lambda: bool(logged()))
    (line,) = logged()
    assert line.startswith("info['told'] is a PurePosixPath")


class TellingAPath(Telling):
    def __init__(self) -> None:
        super().__init__(PurePosixPath("/x"))


@pytest.mark.parametrize("is_one_file", [False, True])
def test_keys_without_end_are_not_logged_without_end(is_one_file: bool, logged: Any) -> None:
    def replace(key: str) -> None:
        if is_one_file:
            dm_env_rpc_server._encode({"info": {key: object()}}, where="")
        else:
            value_json.encode_extras({"info": {key: object()}})

    for count in range(300):
        replace(f"key {count}")
    assert len(logged()) == 100
    module = dm_env_rpc_server if is_one_file else unsent
    assert len(module._logged) == 100


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


@pytest.mark.parametrize(
    "value",
    [
        {"$": "date", "items": [2020, 13, 1]},
        {"$": "datetime", "items": [10**20, 1, 1]},
        {"$": "timedelta", "items": [1e300]},
        {"$": "date", "items": []},
        {"$": "set", "items": [[]]},
        {"$": "frozenset", "items": [{}]},
    ],
)
def test_a_date_or_a_set_that_is_none_is_refused(value: Any) -> None:
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
