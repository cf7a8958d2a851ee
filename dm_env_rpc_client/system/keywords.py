"""Functions whose keyword arguments are the fields of a dataclass.

A function whose options form a dataclass declares `**keywords` as the `Unpack[...]` of a TypedDict
for type checkers, so no signature repeats the dataclass's fields. On their own,
`inspect.signature`, `help` and notebooks would show only `**keywords`. The decorator therefore
gives a function the signature of the dataclass and adds the descriptions of the fields to the
function's docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from dm_env_rpc_client.plain_text import did_you_mean

_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes(options: type, *, more: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that documents the fields of a dataclass as keyword arguments.

    The decorator sets `__signature__` and returns the function itself. Arguments that the function
    declares stay in its signature; its keyword-only arguments follow the dataclass's fields. In the
    docstring, the entry for `**` is replaced by the dataclass's entries for these fields.

    Args:
      options: the dataclass.
      more: whether the function takes further keywords, so that its `**` stays.
    """

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        names = own.parameters
        fields = inspect.signature(options).parameters.values()
        shown = [*names.values(), *(field for field in fields if field.name not in names)]
        if not more:
            shown = [each for each in shown if each.kind is not each.VAR_KEYWORD]
            function.__doc__ = _with_fields(function, options, names)
        shown.sort(key=lambda each: (each.kind, each.name in names))
        function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def attribute_texts(documented: type) -> dict[str, str]:
    """Return the attribute descriptions of a documented class, keyed by attribute name."""
    return {name: " ".join(entry.split()[1:]) for name, entry in _entries(documented).items()}


def _entries(documented: type) -> dict[str, str]:
    section = (inspect.getdoc(documented) or "").partition("\nAttributes:\n")[2]
    found = re.finditer(r"^  (\w+): .*(?:\n    .*)*", section.partition("\n\n")[0], re.M)
    return {each[1]: each[0] for each in found}


def _with_fields(function: Callable[..., Any], options: type, own: Collection[str]) -> str | None:
    text = function.__doc__
    if text is None:
        return None
    shown = "\n".join(entry for name, entry in _entries(options).items() if name not in own)
    return re.sub(
        r"^  \*\*\w+: .*(?:\n    .*)*", lambda _: shown, inspect.cleandoc(text), flags=re.M
    )


def check_keywords(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Raise Python's usual TypeError for an unknown keyword argument, with a hint.

    Args:
      function: a function decorated with `takes`.
      given: the names of the passed keyword arguments.
    """
    known = inspect.signature(function).parameters
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}"
            )
