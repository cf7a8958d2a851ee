"""Helpful errors for code that uses a dm_env environment as if it were a Gymnasium environment.

Each name in Gymnasium's interface is an attribute that raises AttributeError, so that `hasattr`
returns False. A `__getattr__` method would slow down access to all other attributes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from dm_env_rpc_client.plain_text import did_you_mean

_Reset = TypeVar("_Reset", bound=Callable[..., Any])

_MEANT = {
    "action_space": "action_spec()",
    "observation_space": "observation_spec()",
    "single_action_space": "action_spec()",
    "single_observation_space": "observation_spec()",
    "reward_range": "reward_spec()",
    "seed": "settings of the world or of a reset",
    "np_random": "settings of the world or of a reset",
    "render": "observations",
    "render_mode": "observations",
    "metadata": "",
    "spec": "",
    "unwrapped": "",
}
"""The names in Gymnasium's interface and their counterparts in a dm_env environment."""


class DmEnvNames:
    """A base class of dm_env environments that raises helpful errors for Gymnasium's names."""

    _gymnasium_call = 'gymnasium.make("dm_env_rpc_client.gymnasium:Remote-v0", address=...)'
    """The call that makes the same environment with Gymnasium's interface."""

    def __dir__(self) -> Iterable[str]:
        # Without Gymnasium's names: reading them raises AttributeError.
        own = vars(self)
        return [name for name in super().__dir__() if name in own or not _is_missing(self, name)]


class _Missing:
    """A descriptor for a missing attribute, over which instance attributes take precedence."""

    def __init__(self, name: str, meant: str):
        self._name = name
        self._meant = meant

    def __get__(self, instance: Any, owner: type[DmEnvNames]) -> Any:
        place = f", which has {self._meant} instead" if self._meant else ""
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}: it is a dm_env "
            f"environment{place}; for Gymnasium's interface, use {owner._gymnasium_call}",
            name=self._name,
            obj=instance,
        )


def _is_missing(environment: DmEnvNames, name: str) -> bool:
    return isinstance(inspect.getattr_static(type(environment), name, None), _Missing)


# Not in the class, where type checkers would take them for existing attributes.
for _name, _there in _MEANT.items():
    setattr(DmEnvNames, _name, _Missing(_name, _there))


def takes_settings(reset: _Reset) -> _Reset:
    """Wrap `reset` to raise helpful errors for unknown keyword arguments.

    The signature does not contain these arguments, since subclasses would then have to accept
    them, too.
    """

    @functools.wraps(reset)
    def call(self: DmEnvNames, settings: Any = None, **unexpected: Any) -> Any:
        if unexpected:
            raise _unexpected(type(self), next(iter(unexpected)))
        return reset(self, settings)

    @functools.wraps(reset)
    async def call_async(self: DmEnvNames, settings: Any = None, **unexpected: Any) -> Any:
        if unexpected:
            raise _unexpected(type(self), next(iter(unexpected)))
        return await reset(self, settings)

    return cast("_Reset", call_async if inspect.iscoroutinefunction(reset) else call)


def _unexpected(kind: type[DmEnvNames], name: str) -> TypeError:
    text = f"{kind.__name__}.reset() got an unexpected keyword argument {name!r}"
    if name not in ("seed", "options"):
        return TypeError(f"{text}{did_you_mean(name, ['settings'])}")
    settings = '{"seed": 1}' if name == "seed" else "{...}"
    return TypeError(
        f"{text}: it is a dm_env environment, whose resets take settings, such as "
        f"reset({settings}), if the server knows them; for Gymnasium's interface, use "
        f"{kind._gymnasium_call}"
    )
