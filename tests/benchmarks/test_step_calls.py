"""A step does not get longer unnoticed: its calls and bytecodes, at each end."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.step_calls import counted

MOST = {"dm_env": (15, 26), "Gymnasium": (26, 33)}
"""By way: the most calls at the client and at the server, whose examples are counted, too."""

MOST_BYTECODES = {
    (3, 11): {"dm_env": (945, 1_195), "Gymnasium": (1_270, 1_835)},
    (3, 13): {"dm_env": (860, 1_120), "Gymnasium": (1_160, 1_725)},
}
"""By version of Python and by way: about 2 % more than were counted at the client, and 5 % at the
server, where some are of the clock. Lower them after a change that makes a step shorter."""


@pytest.mark.parametrize("way", MOST)
def test_a_step_has_no_more_bytecodes(way: str) -> None:
    most = MOST_BYTECODES.get(sys.version_info[:2])
    if most is None:
        pytest.skip(f"bytecodes of Python {sys.version_info[:2]} are not counted")
    client, server, steps = counted(way, bytecodes=True)
    found = client.total() / steps, server.total() / steps
    listed = (client + server).most_common()
    shown = "\n".join(f"{count / steps:.0f} {name}" for name, count in listed if count >= steps)
    assert all(made <= limit for made, limit in zip(found, most[way], strict=True)), (found, shown)
    # In fewer no step can be taken.
    assert min(found) > 500


@pytest.mark.parametrize("way", MOST)
def test_a_step_makes_no_more_calls(way: str) -> None:
    client, server, steps = counted(way)
    found = client.total() / steps, server.total() / steps
    listed = (client + server).most_common()
    shown = "\n".join(f"{count / steps:.2f} {name}" for name, count in listed)
    assert all(made <= most for made, most in zip(found, MOST[way], strict=True)), (found, shown)
    # A step that goes the general way makes twice as many.
    assert all(made > most / 2 for made, most in zip(found, MOST[way], strict=True))
