"""dm_env's Environment, as a type checker should see it.

dm_env says nothing of its types to mypy, for which a subclass then has every attribute: a misspelt
method would be no error. Pyright reads them from its source, and needs no help.
"""

from __future__ import annotations

from typing import Any

import dm_env

__all__ = ["Environment"]

MYPY = False
"""True for mypy, which knows this name."""

if MYPY:

    class Environment:  # noqa: D101  # dm_env documents it
        def reset(self) -> dm_env.TimeStep: ...
        def step(self, action: Any) -> dm_env.TimeStep: ...
        def action_spec(self) -> Any: ...
        def observation_spec(self) -> Any: ...
        def reward_spec(self) -> Any: ...
        def discount_spec(self) -> Any: ...
        def close(self) -> None: ...

else:
    Environment = dm_env.Environment
