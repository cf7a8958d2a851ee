"""A step does not get longer unnoticed: calls of functions of this package, at each end."""

from __future__ import annotations

import pytest

from tests.benchmarks.step_calls import counted

MOST = {"dm_env": (24, 27), "Gymnasium": (35, 34)}
"""By way: the most calls at the client and at the server, whose examples are counted, too."""


@pytest.mark.parametrize("way", MOST)
def test_a_step_makes_no_more_calls(way: str) -> None:
    client, server, steps = counted(way)
    found = client.total() / steps, server.total() / steps
    listed = (client + server).most_common()
    shown = "\n".join(f"{count / steps:.2f} {name}" for name, count in listed)
    assert all(made <= most for made, most in zip(found, MOST[way], strict=True)), (found, shown)
    # A step that goes the general way makes twice as many.
    assert all(made > most / 2 for made, most in zip(found, MOST[way], strict=True))
