"""All environments of the table, by name, and what serves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.travelling.environments import (
    informing,
    misbehaving,
    observed,
    of_agents,
    of_dm_env,
)
from tests.travelling.environments.habits import Habit
from tests.travelling.environments.stacked import Stacked

GYMNASIUM: Mapping[str, Habit] = {**observed.HABITS, **informing.HABITS, **misbehaving.HABITS}

DM_ENV: Mapping[str, Habit] = {f"dm_env: {name}": each for name, each in of_dm_env.HABITS.items()}

AGENTS: Mapping[str, Habit] = {f"agents: {name}": each for name, each in of_agents.HABITS.items()}

HABITS: Mapping[str, Habit] = {**GYMNASIUM, **DM_ENV, **AGENTS}


def make(habit: str, row: int = 0) -> Any:
    """Makes the environment with a habit."""
    return HABITS[habit].make(row)


def make_vector(habit: str, num_envs: int = 2) -> Stacked:
    """Makes the vector environment of some with a habit."""
    return Stacked(GYMNASIUM[habit].make, num_envs)
