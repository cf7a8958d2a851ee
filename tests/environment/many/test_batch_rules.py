"""A server that breaks the rules for batches: every client says what is wrong, and in which row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.server import Server, serve
from tests.environment.many.liars import WAYS, liars
from tests.protocol.lies import LIES

TRANSPORTS = ["http2"]

EACH_KIND = ["type 7", "nan in a LAST row", "row -1", "row N", "many rows", "a number"]


@pytest.fixture(scope="module")
def liar() -> Iterator[Server]:
    with serve(liars({"none": lambda values: None, **{k: v[0] for k, v in LIES.items()}})) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", EACH_KIND)
def test_what_breaks_the_rules_is_a_public_error_that_names_it(
    liar: Server, lie: str, way: str, tmp_path: Path
) -> None:
    steps = WAYS[way](liar.address, lie, tmp_path)
    next(steps), next(steps)
    began = time.process_time()
    with pytest.raises(DmEnvRpcClientError) as caught:
        next(steps)
    # A server that sends a lot takes little time. (The server is in this process, too.)
    assert time.process_time() - began < 2.0
    assert LIES[lie][1] in str(caught.value)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_keeps_the_rules_is_taken(liar: Server, way: str, tmp_path: Path) -> None:
    assert len(list(WAYS[way](liar.address, "none", tmp_path))) == 3
