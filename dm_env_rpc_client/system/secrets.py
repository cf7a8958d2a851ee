"""Keyword arguments that are secret, and that no text or JSON shows.

Other projects keep the arguments of an environment and publish them: Gymnasium in the spec of an
environment, Minari in the metadata of a data set, and loggers in the configuration of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from dm_env_rpc_client.errors import SpecError

_NAMES = ("token", "metadata")

_SHOWN = "<hidden>"


class Secret(str):
    """A `token` or `metadata` argument that texts and JSON show as `<hidden>`.

    All functions with the arguments `token` and `metadata` accept it. A copy and a pickle contain
    the secret, because another process needs it to connect.

    Attributes:
      value: the token or the metadata.
    """

    __slots__ = ("value",)

    value: Any

    def __new__(cls, value: Any) -> Secret:
        """Hide a token or metadata.

        Args:
          value: the token or the metadata.
        """
        made = super().__new__(cls, _SHOWN)
        made.value = value.value if isinstance(value, Secret) else value
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # PyYAML and jsonpickle use protocol 2. `pickle`, cloudpickle and `copy` use a later one.
        return (Secret, (self.value,)) if int(protocol) > 2 else (str, (_SHOWN,))


class Keywords(dict[str, Any]):
    """Keyword arguments whose secrets are hidden, including secrets that are added later."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(hidden(dict(*given, **more)))

    def __setitem__(self, name: str, value: Any) -> None:
        super().update(hidden({name: value}))

    def update(self, *given: Any, **more: Any) -> None:
        """Add keyword arguments."""
        super().update(hidden(dict(*given, **more)))


def hidden(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with a `Secret` for each secret."""
    return {
        name: value if value is None or name not in _NAMES else Secret(value)
        for name, value in keywords.items()
    }


def revealed(value: Any, name: str) -> Any:
    """Return a secret argument, which may be a `Secret`.

    Args:
      value: the argument.
      name: the name of the argument, for the error.

    Raises:
      SpecError: the argument was read from a text in which the secret is hidden.
    """
    found = value.value if isinstance(value, Secret) else value
    if isinstance(found, str) and found == _SHOWN:
        raise SpecError(
            f"{name} is {_SHOWN!r}: it was read from JSON or another text, such as that of a "
            f"Gymnasium spec, which does not show secrets; pass {name}= again, as in "
            f"gymnasium.make(spec, {name}=...)"
        )
    return found
