"""Validate the factories, environments and strings passed to `serve` before creating worlds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import dm_env

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.construction import SERVED
from dm_env_rpc_client.server.single_instance import Instance
from dm_env_rpc_client.server.worlds.world import Game, World
from dm_env_rpc_client.system.foreign_environments import Conversion
from dm_env_rpc_client.system.sources import find_source


class AnyEnvironment(Protocol):
    """A dm_env, Gymnasium or PettingZoo environment; these packages need not be installed."""

    def reset(self) -> Any:
        """Begin an episode."""

    def step(self, action: Any, /) -> Any:
        """Take a step."""

    def close(self) -> Any:
        """Free the resources of the environment."""


Hosted: TypeAlias = Callable[..., Any] | AnyEnvironment | str
"""A source of environments: a factory, an environment, or a string that specifies a factory."""

Factory: TypeAlias = Callable[..., Any] | Instance
"""A factory of worlds."""


def factories_of(
    named: Mapping[str, Hosted], insecure: bool, conversion: Conversion
) -> dict[str, Factory]:
    """Return the factories of worlds, by name.

    Args:
      named: the sources, by name.
      insecure: whether strings may name servers on other machines, reached in plaintext.
      conversion: how environments from other libraries are converted.

    Raises:
      SpecError: a source cannot make an environment with any settings.
    """
    factories = {
        name: _factory(hosted, f"environment {name!r}" if name else "the environment", insecure)
        for name, hosted in named.items()
    }
    for factory in factories.values():
        if isinstance(factory, Instance):
            factory.take(conversion)
    return factories


def _factory(hosted: Hosted, what: str, insecure: bool) -> Factory:
    factory: Any = hosted
    if isinstance(hosted, str):
        try:
            factory = find_source(hosted, insecure).factory
        except SpecError as error:
            # Only one of several environments needs its name in the error.
            if what == "the environment":
                raise
            raise SpecError(f"{what}: {error}") from error
    elif isinstance(hosted, World | Game):
        raise SpecError(
            f"{what} is an existing {type(hosted).__name__}, which must be the only world of its "
            f"server: pass it alone, or pass a factory, such as {type(hosted).__name__}"
        )
    elif _is_environment(hosted):
        return Instance(hosted)
    if not callable(factory):
        raise SpecError(
            f"{what} must be a callable that makes environments, an environment, or a string such "
            f"as 'module:factory', got {type(factory).__name__}; an environment is {SERVED}"
        )
    _check_callable(factory, what)
    return factory  # type: ignore[no-any-return]


def _is_environment(given: Any) -> bool:
    """Return whether `given` is an environment, not a factory, without running any of its code."""
    # A class is a factory, even if its instances are environments.
    if isinstance(given, type):
        return False
    kind = type(given)
    if isinstance(given, dm_env.Environment) or (hasattr(kind, "step") and hasattr(kind, "reset")):
        return True
    # A wrapper may have its methods by `__getattr__`, which its class does not show.
    return not callable(given) and hasattr(given, "step") and hasattr(given, "reset")


def _check_callable(factory: Any, what: str) -> None:
    if isinstance(factory, type):
        _check_class(factory, what)
    if inspect.iscoroutinefunction(factory) or inspect.isgeneratorfunction(factory):
        raise SpecError(
            f"{what}: {factory.__name__} does not return an environment when called, because "
            "it is a coroutine or generator function; pass a regular function"
        )
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return  # Callables of extension modules may have no signature to check.
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise SpecError(
                f"{what}: {factory} requires the positional-only argument {each.name!r}, but world "
                "settings are passed by keyword; make it a keyword argument"
            )


def _check_class(kind: type, what: str) -> None:
    """Raise SpecError if no instance of a class can be an environment."""
    if inspect.isabstract(kind):
        lacks = ", ".join(sorted(kind.__abstractmethods__))  # type: ignore[attr-defined]
        raise SpecError(f"{what}: {kind.__name__} is abstract; implement {lacks}")
    if issubclass(kind, World):
        return
    missing = [name for name in ("reset", "step") if not hasattr(kind, name)]
    if missing and not _may_be_anything(kind):
        raise SpecError(
            f"{what}: the class {kind.__name__} is not an environment: it has no "
            f"{' and no '.join(missing)}; serve {SERVED}, or a function that returns one"
        )


def _may_be_anything(kind: type) -> bool:
    """Return whether calling a class can return objects with attributes that the class lacks."""
    if kind.__module__ == "builtins":
        return False
    if hasattr(kind, "__getattr__"):
        return True
    own: list[tuple[type, type, str]] = [
        (type(kind), type, "__call__"),
        (kind, object, "__new__"),
        (kind, object, "__getattribute__"),
    ]
    return any(getattr(one, name) is not getattr(plain, name) for one, plain, name in own)
