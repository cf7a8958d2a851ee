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

import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client import EnvironmentsFailedError
from dm_env_rpc_client.adaptors.gymnasium import make_remote, unsent, value_json
from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.server import serve
from tests.support.scripted import settles
from tests.support.serving import one_file_server, own_server
from tests.travelling.environments.usual import Usual
from tests.travelling.in_process import OPTIONS, arrived
from tests.travelling.told import difference


class Colour(enum.Enum):
    RED = 1


REFUSED: dict[str, tuple[Any, str]] = {
    "a record": (np.array([(1, 2)], "i4,i4"), "an array"),
    "an enum": (Colour.RED, "a Colour"),
    "a path": (PurePosixPath("/x"), "a PurePosixPath"),
    "a time with a zone": (
        datetime.datetime(2020, 2, 3, tzinfo=zoneinfo.ZoneInfo("UTC")), "a datetime"
    ),
}  # fmt: skip
"""What a client cannot send, and what it is called."""


class Telling(Usual):
    """Its infos are a value, or the options of the reset.

    Args:
      value: the value; the options if it is None.
      is_first: whether a reset tells it, too.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, value: Any = None, is_first: bool = True):
        super().__init__(0)
        self._value, self._is_first = value, is_first

    def ends(self) -> tuple[bool, bool]:
        return False, False

    def inform(self) -> Any:
        if self.steps == 0 and not self._is_first:
            return {}
        options = self.was_given["options"] or {}
        return {"told": options.get("value") if self._value is None else self._value}


DEEP: dict[str, Any] = {"level": 9}
for _ in range(9):
    DEEP = {"level": DEEP}


class Called(Telling):
    """Has methods that clients call."""

    level = 1

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
        for value, kind in REFUSED.values():
            with pytest.raises(SpecError, match=f"{place} is {kind}.*cannot be sent; pass only"):
                give(envs, value)
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
    start = one_file_server if way == "one file" else own_server
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


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (np.complex64(1 + 2j), [1.0, 2.0]),
        (np.ma.MaskedArray([1, 2, 3], [False, True, False]), [1, 2, 3]),
        (np.datetime64("2020-01-01"), 18262),
    ],
)
def test_an_older_client_gets_the_numbers(value: Any, numbers: Any) -> None:
    known = json.loads(value_json.encode(value))
    for key in ("as", "mask", "fill_value", "scalar"):
        known.pop(key, None)
    assert value_json.decode(json.dumps(known), "it").tolist() == numbers


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


def test_an_integer_that_gymnasium_cannot_stack_is_the_error_of_its_row() -> None:
    def make(is_large: bool) -> Telling:
        return Telling(10**30 if is_large else 5, is_first=False)

    settings = [{"is_large": False}, {"is_large": True}]
    with serve(make) as server, RemoteVectorEnv(server.address, 2, settings) as envs:
        envs.reset()
        for _ in range(2):
            with pytest.raises(EnvironmentsFailedError, match="OverflowError") as caught:
                envs.step(envs.action_space.sample())
            assert list(caught.value.failures) == [1]


def test_arguments_and_results_of_calls_travel_as_infos_do() -> None:
    with (
        serve(Called, callable_names=["echo"]) as server,
        RemoteVectorEnv(server.address, 2, num_batches=0) as envs,
    ):
        for value in OPTIONS.values():
            for found in envs.call("echo", value):
                assert not difference(found, arrived(value))
