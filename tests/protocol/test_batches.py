"""The rules for batches, which `num_rows` and `check_step` know."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol.batches import (
    ROW_ERROR_BYTES,
    ROW_ERRORS,
    STEP_TYPE,
    check_step,
    num_rows,
    row_errors,
    row_errors_text,
)
from tests.protocol.lies import COUNT, LIES, Values


def good_step() -> Values:
    return {
        STEP_TYPE: np.array([0, 1, 2, 1], np.uint8),
        "reward": np.zeros(COUNT),
        "discount": np.ones(COUNT),
        ROW_ERRORS: "",
    }


@pytest.mark.parametrize("lie", LIES)
def test_a_step_that_breaks_the_rules_is_an_error_that_names_the_field_and_the_row(
    lie: str,
) -> None:
    values = good_step()
    check_step(values, COUNT)
    change, expected = LIES[lie]
    change(values)
    began = time.thread_time()
    with pytest.raises(ProtocolError) as caught:
        check_step(values, COUNT)
    assert time.thread_time() - began < 0.5
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 1_000
    str(caught.value).encode()


def test_only_what_is_there_is_checked() -> None:
    check_step({}, COUNT)
    check_step({"value": np.zeros(2)}, COUNT)
    with pytest.raises(ProtocolError):
        check_step({"value": np.zeros(2), "step_type": np.full(COUNT, 7, np.uint8)}, COUNT)


def test_a_discount_may_be_nan_where_nobody_asks_whether_a_sequence_has_terminated() -> None:
    values = good_step()
    values["discount"][[0, 1, 3]] = np.nan
    check_step(values, COUNT)
    check_step({**good_step(), "discount": np.ones(COUNT, np.int64)}, COUNT)
    values["discount"][:] = np.nan
    with pytest.raises(ProtocolError):
        check_step(values, COUNT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{}", {}),
        (" { } ", {}),
        ('{"0": "a", "3": ""}', {0: "a", 3: ""}),
        (' {\t"3"\n:\r"b" , "0":"a"} ', {3: "b", 0: "a"}),
        ('{"1": "\\u00e9\\n\\"\\ud83d\\ude00,:{}[]"}', {1: '\u00e9\n"\U0001f600,:{}[]'}),
        ('{"1": "a\\ud800b"}', {1: "a?b"}),
    ],
)
def test_texts_of_rows_are_read(text: str, expected: dict[int, str]) -> None:
    assert row_errors(text, COUNT) == expected


def test_texts_of_rows_come_back_as_they_were_written() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise OSError("no text")

    failures: dict[int, BaseException] = {
        9: ValueError("x"),
        1: KeyError("\u00e9, \ud800: {}"),
        3: OSError("y" * 100_000),
        4: SilentError(),
    }
    text = row_errors_text(failures)
    assert list(json.loads(text)) == ["1", "3", "4", "9"]
    found = row_errors(text, 10)
    assert found[9] == "ValueError: x"
    assert found[1] == "KeyError: '\u00e9, \\ud800: {}'"
    assert found[3].startswith("OSError: yyy")
    assert len(found[3]) < ROW_ERROR_BYTES + 100
    assert found[4] == "SilentError: (its message raised OSError)"
    assert row_errors_text({}) == ""


def test_as_many_rows_as_there_can_be_fail_in_a_time_that_is_proportional() -> None:
    count = 16_384
    text = row_errors_text({row: ValueError("," * 500) for row in range(count)})
    began = time.thread_time()
    assert len(row_errors(text, count)) == count
    assert time.thread_time() - began < 1.0


def spec(dtype: int, *shape: int) -> Any:
    return dm_env_rpc_pb2.TensorSpec(dtype=dtype, shape=shape)  # type: ignore[arg-type]


GOOD = {
    STEP_TYPE: spec(dm_env_rpc_pb2.UINT8, 4),
    "reward": spec(dm_env_rpc_pb2.DOUBLE, 4),
    "discount": spec(dm_env_rpc_pb2.FLOAT, 4, 2),
    ROW_ERRORS: spec(dm_env_rpc_pb2.STRING),
}


@pytest.mark.parametrize(
    "changed",
    [
        {STEP_TYPE: None},
        {"reward": None},
        {STEP_TYPE: spec(dm_env_rpc_pb2.INT32, 4)},
        {STEP_TYPE: spec(dm_env_rpc_pb2.UINT8)},
        {STEP_TYPE: spec(dm_env_rpc_pb2.UINT8, -1), "reward": spec(dm_env_rpc_pb2.DOUBLE, -1)},
        {STEP_TYPE: spec(dm_env_rpc_pb2.UINT8, 0), "reward": spec(dm_env_rpc_pb2.DOUBLE, 0)},
        {STEP_TYPE: spec(dm_env_rpc_pb2.UINT8, 4, 1)},
        {"reward": spec(dm_env_rpc_pb2.DOUBLE)},
        {"reward": spec(dm_env_rpc_pb2.DOUBLE, 3)},
    ],
)
def test_a_world_without_step_types_and_rewards_of_as_many_rows_is_not_batched(
    changed: dict[str, Any],
) -> None:
    assert num_rows(GOOD) == 4
    found = {name: each for name, each in {**GOOD, **changed}.items() if each is not None}
    assert num_rows(found) is None


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("reward", spec(dm_env_rpc_pb2.STRING, 4), "'reward' of the batch is STRING [4]"),
        ("discount", spec(dm_env_rpc_pb2.PROTO, 4), "'discount' of the batch is PROTO [4]"),
        ("discount", spec(dm_env_rpc_pb2.DOUBLE), "'discount' of the batch is DOUBLE []"),
        ("discount", spec(dm_env_rpc_pb2.DOUBLE, 5), "'discount' of the batch is DOUBLE [5]"),
        (ROW_ERRORS, spec(dm_env_rpc_pb2.STRING, 4), "'row_errors' of the batch is STRING [4]"),
        (ROW_ERRORS, spec(dm_env_rpc_pb2.UINT8), "'row_errors' of the batch is UINT8 []"),
    ],
)
def test_specs_of_a_batch_that_break_the_rules_are_errors(
    name: str, wrong: Any, expected: str
) -> None:
    with pytest.raises(SpecError, match="of the batch is") as caught:
        num_rows({**GOOD, name: wrong})
    assert expected in str(caught.value)
