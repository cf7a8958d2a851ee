from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors import bounded_parsing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "about 100001 values"),
        (b"[" * 33 + b"]" * 33, "more than 32 levels"),
        (b'{"a":' * 33 + b"0" + b"}" * 33, "more than 32 levels"),
        (b'["\\"",' + b"[" * 33 + b"]" * 34, "more than 32 levels"),
        (b"\xff", "expected UTF-8 JSON"),
        (b"9" * 5000, "expected UTF-8 JSON"),
        (b"[1,]", "expected UTF-8 JSON"),
        (b"{" + b"," * 70_000, "values"),
    ],
)
def test_json_bombs_are_refused_before_they_go_off(text: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        bounded_parsing.decode(text, "the text")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 32 + b"]" * 32,
        b"[" + b",".join([b"[]"] * 40) + b"]",
        b'["' + b"[" * 40 + b'"]',
        b'["\\\\","' + b"[" * 40 + b'\\"' + b'"]',
    ],
)
def test_deep_looks_alone_are_no_bomb(text: bytes) -> None:
    assert bounded_parsing.decode(text, "the text") == json.loads(text)


def test_diagnostics_become_what_json_can_hold() -> None:
    nested: Any = 0
    for _ in range(40):
        nested = [nested]
    value = {
        "array": np.array([[1, 2]]),
        "scalar": np.float32(0.5),
        "nan": float("nan"),
        3: (True, None, "text"),
        "object": object(),
    }
    assert bounded_parsing.jsonable(value) == {
        "array": [[1, 2]],
        "scalar": 0.5,
        "nan": None,
        "3": [True, None, "text"],
        "object": "object",
    }
    bounded_parsing.decode(bounded_parsing.encode(bounded_parsing.jsonable(nested), ""), "")
