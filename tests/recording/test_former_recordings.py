"""Recordings that the former version has made are read and replayed as by itself.

They are in `former/`, with what its client saw and what it read from them. They were made with its
package, which is in the folder F that `tests.interop.former.version` returns:

    PYTHONPATH=F:. python -m tests.interop.former.scenarios record tests/recording/former
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.recording import replay
from tests.interop.former import scenarios

FOLDER = Path(__file__).parent / "former"


def expected(name: str, kind: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())[kind]


@pytest.mark.parametrize("name", scenarios.READ)
def test_it_is_read_as_before(name: str) -> None:
    read = expected(name, "read")
    assert read[0] is True
    assert len(read[1]) > 1
    assert scenarios.read_back(FOLDER / f"{name}.mcap") == read


@pytest.mark.parametrize("name", scenarios.RECORDED)
def test_it_is_replayed_as_before(name: str) -> None:
    # The former client has asked for step masks, which is another request.
    with replay(FOLDER / f"{name}.mcap", lenient=name == "vector") as server:
        seen = scenarios.RECORDED[name](server.address)
    assert json.loads(json.dumps(seen)) == expected(name, "seen")
