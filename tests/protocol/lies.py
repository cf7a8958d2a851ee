"""Steps of a batched world that break the rules for batches, and what the error says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dm_env_rpc_client.protocol.batches import ROW_ERRORS, STEP_TYPE

COUNT = 4
"""The rows of the batch."""

Values = dict[str, Any]
Lie = Callable[[Values], None]
"""Changes a step that keeps the rules."""


def kind(row: int, number: int) -> Lie:
    def lie(values: Values) -> None:
        values[STEP_TYPE][row] = number

    return lie


def errors(text: str | Callable[[], str]) -> Lie:
    """Texts that are large are made when they are needed, and not in each process of a run."""

    def lie(values: Values) -> None:
        values[ROW_ERRORS] = text if isinstance(text, str) else text()

    return lie


def nan_discount(values: Values) -> None:
    values[STEP_TYPE][1] = 2
    values["discount"][1] = np.nan


LIES: dict[str, tuple[Lie, str]] = {
    "type 7": (kind(2, 7), "'step_type': the step of row 2 has the type 7"),
    "type 255": (kind(3, 255), "'step_type': the step of row 3 has the type 255"),
    "nan in a LAST row": (nan_discount, "'discount': the step of row 1 is LAST"),
    "row -1": (errors('{"-1": "x"}'), "'row_errors': expected an index from 0 to 3, got '-1'"),
    "row N": (errors(f'{{"{COUNT}": "x"}}'), f"index from 0 to 3, got '{COUNT}'"),
    "a row of 40 digits": (errors(json.dumps({"1" * 40: "x"})), "index from 0 to 3, got '1111"),
    "a row of 100,000 digits": (errors(json.dumps({"1" * 100_000: "x"})), "'11111"),
    "a row with a leading zero": (errors('{"01": "x"}'), "index from 0 to 3, got '01'"),
    "a row with a sign": (errors('{"+1": "x"}'), "index from 0 to 3, got '+1'"),
    "a row with a space": (errors('{" 1": "x"}'), "index from 0 to 3, got ' 1'"),
    "an Arabic digit": (errors('{"\\u0661": "x"}'), "index from 0 to 3, got '"),
    "a surrogate as the row": (errors('{"\\ud800": "x"}'), "index from 0 to 3, got "),
    "no row": (errors('{"": "x"}'), "index from 0 to 3, got ''"),
    "a float": (errors('{"1.0": "x"}'), "index from 0 to 3, got '1.0'"),
    "a row twice": (errors('{"1": "x", "1": "y"}'), "row 1 has two error messages"),
    "a number": (errors('{"1": 5}'), "the error message of row 1 is not a string"),
    "a list": (errors('{"1": ["x"]}'), "the error message of row 1 is not a string"),
    "a list of texts": (errors('["x"]'), "'row_errors': expected an object"),
    "a text": (errors("boom"), "'row_errors': expected an object"),
    "white space": (errors(" "), "'row_errors': expected an object"),
    "an open object": (errors('{"1": "x"'), "expected a comma or the end"),
    "an open text": (errors('{"1": "x'), "the error message of row 1 is not a JSON string"),
    "no colon": (errors('{"1" "x"}'), "expected a colon after the key '1'"),
    "a comma at the end": (errors('{"1": "x",}'), "the key of an entry is not a string"),
    "more": (errors('{"1": "x"} {}'), "unexpected text after the object"),
    "a control character": (errors('{"1": "\n"}'), "message of row 1 is not a JSON string"),
    "many rows": (
        errors(lambda: json.dumps(dict.fromkeys(map(str, range(300_000)), "x"))),
        "index from 0 to 3, got '4'",
    ),
    "many nested lists": (errors(lambda: "[" * 1_000_000), "expected an object"),
    "many values": (errors(lambda: '{"0": [' + "0," * 3_000_000 + "0]}"), "row 0 is not a string"),
    "one row many times": (
        errors(lambda: "{" + '"0": "x",' * 1_000_000), "row 0 has two error messages"
    ),
}  # fmt: skip
