"""The table of all checks, in the order in which they run."""

from __future__ import annotations

from types import ModuleType

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.checks import (
    actions,
    foundations,
    observations,
    properties,
    sequences,
    streaming,
    world_independence,
    worlds,
)

_MODULES = (
    foundations,
    worlds,
    world_independence,
    observations,
    actions,
    sequences,
    streaming,
    properties,
)


def _rows(module: ModuleType) -> tuple[Check, ...]:
    """Returns the checks of a module; others import some of them as their needs."""
    return tuple(
        row
        for row in vars(module).values()
        if isinstance(row, Check) and row.function.__module__ == module.__name__
    )


FOUNDATIONS: tuple[Check, ...] = _rows(foundations)
"""The checks that run first, because others need them."""

CHECKS: tuple[Check, ...] = tuple(row for module in _MODULES for row in _rows(module))
"""Every check, in the order of their subjects."""
