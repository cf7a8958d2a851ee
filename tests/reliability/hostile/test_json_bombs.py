"""Row 59: values in JSON that ask for memory, at the server, the client and in one file."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import ProtocolError
from dm_env_rpc_client.adaptors.gymnasium import values
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from tests.reliability.recording import Seen
from tests.support import forks

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(59)

READERS: dict[str, Callable[[Any], Any]] = {
    "package": lambda value: values.from_jsonable(value, "an info"),
    "one file": dm_env_rpc_server._unjsonable,
}

BOMBS: dict[str, Any] = {
    "one long text among short ones": {
        "$": "objects",
        "shape": [2500],
        "items": ["x"] * 2499 + ["y" * 200_000],
    },
    "several of them": [
        {"$": "objects", "shape": [500], "items": ["x"] * 499 + ["y" * 40_000]} for _ in range(20)
    ],
    "many small ones": [
        {"$": "objects", "shape": [257], "items": ["x"] * 256 + ["y" * 255]} for _ in range(2_000)
    ],
    "a scalar without a type": {"$": "scalar", "dtype": "V", "value": 500_000_000},
    "a scalar of a type of its own": {"$": "scalar", "dtype": "V500000000", "value": 0},
    "an array of texts": {"$": "array", "dtype": "U500000000", "shape": [0], "base64": ""},
}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _read(reader: str, text: str, pipe: Any) -> None:
    value = json.loads(text)
    before = _peak_mib()
    try:
        READERS[reader](value)
        outcome = "read"
    except (ProtocolError, ValueError, TypeError) as error:
        outcome = type(error).__name__
    pipe.send((outcome, _peak_mib() - before))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_values_in_json_take_little_more_memory_than_their_message(
    bomb: str, reader: str, seen: Seen
) -> None:
    text = json.dumps(BOMBS[bomb])
    with forks.child(_read, reader, text) as (_, pipe):
        assert pipe.poll(60)
        outcome, more = pipe.recv()
    assert outcome in ("read", "ProtocolError", "ValueError")
    seen(bombs=1, memory_mib=more)
    assert more < 4 * len(text) / (1 << 20) + 64


@pytest.mark.parametrize("reader", READERS)
def test_objects_stay_objects_and_texts_of_like_lengths_an_array(reader: str) -> None:
    read = READERS[reader]
    texts = read({"$": "objects", "shape": [2, 1], "items": ["left", "straight on"]})
    assert texts.dtype.kind == "U"
    assert texts.tolist() == [["left"], ["straight on"]]
    mixed = ["x"] * 99 + ["y" * 200_000]
    objects = read({"$": "objects", "shape": [100], "items": mixed})
    assert objects.dtype == object
    assert objects.tolist() == mixed
    nothing = read({"$": "objects", "shape": [0], "items": []})
    assert nothing.shape == (0,)
    assert isinstance(nothing, np.ndarray)
