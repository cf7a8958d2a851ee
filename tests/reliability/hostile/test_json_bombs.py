"""Row 59: values in JSON that ask for memory, sent to processes whose memory is measured."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError, make
from dm_env_rpc_client.adaptors.gymnasium import make_remote, value_json
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import serve
from tests.launch.standalone.interpreters import served
from tests.mistakes.wrong_environments import CountdownEnv
from tests.reliability.hostile.served import Served, heard, measured
from tests.reliability.hostile.served import served as hosted
from tests.reliability.recording import Seen
from tests.support import forks

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(59)

MIB = 1 << 20
SLACK = 64 * MIB

BOMBS: dict[str, Any] = {
    "one long text among short ones": {
        "$": "objects",
        "shape": [2500],
        "items": ["x"] * 2499 + ["y" * 200_000],
    },
    "many small ones": [
        {"$": "objects", "shape": [257], "items": ["x"] * 256 + ["y" * 255]} for _ in range(2_000)
    ],
    "a scalar without a type": {"$": "scalar", "dtype": "V", "value": 500_000_000},
    "a scalar of a type of its own": {"$": "scalar", "dtype": "V500000000", "value": 0},
    "an array of texts": {"$": "array", "dtype": "U500000000", "shape": [0], "base64": ""},
}

TEXTS: dict[str, Callable[[], str]] = {
    **{name: functools.partial(json.dumps, bomb) for name, bomb in BOMBS.items()},
    "a million brackets": lambda: "[" * 1_000_000,
    "half a million empty lists": lambda: json.dumps([[]] * 500_000),
    "a million numbers": lambda: json.dumps([0] * 1_000_000),
    "a number of a million digits": lambda: "9" * 1_000_000,
    "8 MB of text": lambda: json.dumps("x" * 8_000_000),
    "8 MB of text in an error": lambda: json.dumps({"$": "array", "dtype": "x" * 8_000_000}),
    "a mask of a wrong shape": lambda: json.dumps(
        {"$": "objects", "shape": [1], "items": [1], "mask": [True] * 200_000}
    ),
    "dates of a small dtype": lambda: json.dumps(
        {"$": "array", "dtype": "int8", "shape": [3_000_000], "base64": "AAAA" * 1_000_000,
         "as": "datetime64[ns]"}
    ),
    "bytes of a large dtype": lambda: json.dumps(
        {"$": "array", "dtype": "uint8", "shape": [0], "base64": "", "as": "S500000000"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["package", "one file"])
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "package":
        with hosted(environment=CountdownEnv) as running:
            yield running
    else:
        with served(sys.executable, "hosted_gym:Many") as running:
            yield running


@pytest.mark.parametrize("bomb", TEXTS)
def test_options_at_a_server(bomb: str, server: Served, seen: Seen) -> None:
    text = TEXTS[bomb]()
    with make(server.address) as env:
        env.reset({"options": json.dumps({"fine": 1})})
        before = server.watch_memory()
        with contextlib.suppress(DmEnvRpcError):
            env.reset({"options": json.dumps({"own": 0})[:-2] + text + "}"})
        more = server.peak() - before
    seen(bombs=1, memory_mib=more / MIB)
    assert more < 4 * len(text) + SLACK


def _play(address: str, rows: int | None, pipe: Any) -> None:
    env: Any = (
        make_remote(address) if rows is None else RemoteVectorEnv(address, 2, num_batches=rows)
    )
    env.reset()
    pipe.send("ready")
    pipe.recv()
    measured(env.reset, pipe)


@pytest.mark.parametrize("rows", [None, 0, 1], ids=["Remote-v0", "streams", "batch"])
@pytest.mark.parametrize("bomb", TEXTS)
def test_infos_at_a_client(
    bomb: str, rows: int | None, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    text = TEXTS[bomb]()
    with serve(CountdownEnv) as server, forks.child(_play, server.address, rows) as (_, pipe):
        assert heard(pipe) == "ready"
        monkeypatch.setattr(value_json, "encode_extras", lambda *_: f'{{"info":{{"own":{text}}}}}')
        pipe.send("go")
        outcome, more = heard(pipe)
    assert outcome == "" or outcome.split(":")[0] in ("ProtocolError", "EnvironmentsFailedError")
    assert len(outcome) < 1000
    seen(bombs=1, memory_mib=more / MIB)
    assert more < 4 * len(text) * (1 if rows is None else 2) + SLACK


def _read_row_errors(text: str, pipe: Any) -> None:
    batches.row_errors('{"0":"fine"}', 4)
    measured(lambda: batches.row_errors(text, 4), pipe)


@pytest.mark.parametrize("bomb", TEXTS)
def test_errors_of_rows(bomb: str, seen: Seen) -> None:
    text = TEXTS[bomb]()
    for whole in (text, f'{{"0":{text}}}'):
        with forks.child(_read_row_errors, whole) as (_, pipe):
            outcome, more = heard(pipe)
        assert outcome == "" or outcome.startswith("ProtocolError")
        assert len(outcome) < 1000
        seen(bombs=1, memory_mib=more / MIB)
        assert more < 4 * len(whole) + SLACK


READERS: dict[str, Callable[[Any], Any]] = {
    "package": lambda value: value_json.from_jsonable(value, "an info"),
    "one file": dm_env_rpc_server._unjsonable,
}


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
