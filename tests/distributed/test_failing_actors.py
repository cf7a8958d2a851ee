"""Row 55: rollouts in actors of Ray; see `tests/reliability/processes/test_failing_values.py`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")
from dm_env_rpc_client.distributed import RayRollouts
from tests.distributed.failing import obey, told
from tests.reliability.processes.failing_values import ERRORS, ROWS
from tests.reliability.processes.test_failing_values import CALLER, Rolled, run, silence
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts

__all__ = ["silence"]

pytestmark = pytest.mark.row(55)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@counts(1, 25)
def test_row_55_no_answer_of_actors_is_that_to_another_step(
    ray: Any, count: int, seen: Seen
) -> None:
    # Many more of those after which the actor is kept: a new one takes a second.
    wanted = {(CALLER, 0): 40 * count, ("pickled", 0): 40 * count}
    places = ("raised", "converted", "checked", CALLER, "pickled", "unpickled")
    wanted = {(place, kind): count for place in places for kind in range(len(ERRORS))} | wanted
    way = Rolled("", lambda _: RayRollouts(told, obey, 2, ROWS // 2, attempts=0), keeps_lives=False)
    run(way, wanted, seen, [ray.exceptions.RayError])
