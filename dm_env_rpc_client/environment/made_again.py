"""Copy and pickle environments by making them again with the same arguments.

Connections and worlds cannot be copied. Instead, `copy.deepcopy`, `pickle` and cloudpickle make
new ones in the process that copies or loads the environment, as Gymnasium's EzPickle does. The
copy begins with a reset. If the server was launched for the environment, another server is
launched for the copy.

Pickles contain no secrets, because they may be stored or sent elsewhere. Copies, which stay in the
process, keep tokens and metadata. Pickling an environment with tokens or metadata raises a
SpecError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import dm_env
import numpy as np

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.secrets import Secret, hidden
from dm_env_rpc_client.tensors import casting, nesting

_Made = TypeVar("_Made", bound="MadeByArguments")

_MOST_LEVELS = nesting.MAX_NESTING + casting.MAX_DIMENSIONS + 4
"""The maximum nesting depth of arguments, enough for a list of settings with one entry per row,
in which names are nested and values are arrays."""


class Making(NamedTuple):
    """A function that makes an environment, and the arguments to call the function with."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @classmethod
    def of(cls, make: Callable[..., Any], *arguments: Any, **keywords: Any) -> Making:
        """Return a function that calls `make` with copies of `arguments` and `keywords`.

        Raises:
          SpecError: an argument contains itself, or is nested deeper than settings can be.
        """
        try:
            return cls(make, _snapshot(arguments), hidden(_snapshot(keywords)))
        except _TooDeepError:
            pass  # The code below finds the argument for the error.
        for name, value in (*enumerate(arguments, 1), *keywords.items()):
            try:
                _snapshot(value, _MOST_LEVELS - 1)
            except _TooDeepError:
                where = f"argument {name} of {make.__name__}"
                raise nesting.too_deep(value, where, _MOST_LEVELS) from None
        raise AssertionError("an argument has too many nested levels")

    def __call__(self) -> Any:
        """Create an instance."""
        return self.make(*_snapshot(self.arguments), **_snapshot(self.keywords))

    def check_picklable(self, what: str) -> None:
        """Raise SpecError if an argument must not be in a pickle."""
        for name, value in self.keywords.items():
            # Also in Ray, which pickles the arguments of actors.
            if isinstance(value, Secret) and value.value:
                raise SpecError(
                    f"{what} cannot be pickled, because its {name} may be a secret, and pickles "
                    f"may be stored or sent; instead, pickle a function that reads the {name} and "
                    "makes the environment"
                )


class MadeAgain:
    """The base class of environments that are copied and pickled by making them again.

    `_making` is the function that makes them, or None if an environment cannot be made again.
    """

    _making: Making | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        making = self._known_making("pickled")
        making.check_picklable(type(self).__name__)
        return making, ()

    def __copy__(self) -> Any:
        return self._known_making("copied")()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def _known_making(self, what: str) -> Making:
        if self._making is None:
            raise SpecError(
                f"{type(self).__name__} cannot be {what}, because it uses its caller's "
                "connection; use `make` with an address instead"
            )
        return self._making


class MadeByArguments(MadeAgain):
    """An object that is copied by calling its constructor again with the same arguments."""

    def __new__(cls: type[_Made], *args: Any, **kwargs: Any) -> _Made:  # noqa: PYI019  # Python 3.10 has no Self
        """Create the object, and store the arguments of its constructor."""
        made = super().__new__(cls)
        made._making = Making.of(cls, *args, **kwargs)
        return made


def is_made_again(environment: dm_env.Environment) -> bool:
    """Whether `environment` is or wraps an environment that is copied by making it again.

    Wrappers of any library store the wrapped environment in one of their attributes.
    """
    found, seen = [environment], set()
    while found:
        environment = found.pop()
        if isinstance(environment, MadeAgain):
            return True
        seen.add(id(environment))
        attributes = getattr(environment, "__dict__", {}).values()
        held = (each for each in attributes if isinstance(each, dm_env.Environment))
        found += (each for each in held if id(each) not in seen)
    return False


class _TooDeepError(Exception):
    """Raised if a value has more levels than `_snapshot` copies."""


def _snapshot(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Copy the containers and arrays in `value`, because the program might change them later."""
    # Copied, since a settings array is often reused by its owner.
    if isinstance(value, np.ndarray):
        return value.copy()
    # Subclasses are left alone: their constructors may take other arguments.
    if type(value) is not dict and type(value) not in (list, tuple):
        return value
    if levels == 0:
        raise _TooDeepError
    if type(value) is dict:
        return {key: _snapshot(each, levels - 1) for key, each in value.items()}
    return type(value)([_snapshot(each, levels - 1) for each in value])
