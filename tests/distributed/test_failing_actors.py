"""Row 55: rollouts in actors of Ray whose values fail; see `test_failing_rollouts.py`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")
from dm_env_rpc_client.distributed import RayRollouts
from tests.distributed.failing import Obeying, told
from tests.distributed.test_failing_rollouts import ACTORS, EACH, OF_VALUES, Model, run, silence
from tests.reliability.processes.failing_values import ERRORS
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
    both = range(len(ERRORS))
    # Many more of those after which the actor is kept: a new one takes a second.
    wanted = {("policy", 0): 40 * count, ("dump", 0): 40 * count, ("load", 0): count}
    wanted |= {(place, kind): count for place in OF_VALUES for kind in both}
    wanted |= {(place, 1): count for place in ("policy", "dump", "load")}
    with RayRollouts(told, Obeying(), ACTORS, EACH, attempts=0) as rollouts:
        run(Model(rollouts, count, [ray.exceptions.RayError]), wanted, seen)
