"""Properties: settings that can be read, written and listed while an environment exists."""

from __future__ import annotations

import enum
from collections.abc import Callable

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits


class PropertyAttributes(enum.Flag):
    """The allowed operations on a property, with the numeric values of EnvCApi."""

    NONE = 0
    READABLE = 1
    WRITABLE = 2
    READ_WRITABLE = 3
    LISTABLE = 4

    @property
    def is_readable(self) -> bool:
        """Whether the property can be read."""
        return PropertyAttributes.READABLE in self

    @property
    def is_writable(self) -> bool:
        """Whether the property can be written."""
        return PropertyAttributes.WRITABLE in self

    @property
    def is_listable(self) -> bool:
        """Whether the children of this property can be listed."""
        return PropertyAttributes.LISTABLE in self


def list_recursively(
    list_property: Callable[[str], dict[str, PropertyAttributes]],
    key: str,
    limits: Limits = DEFAULT,
) -> dict[str, PropertyAttributes]:
    """List all descendants of a property.

    Args:
      list_property: lists one level.
      key: the property to begin with.
      limits: limits for the number of properties and levels.

    Returns:
      Attributes by key. A repeated key is listed once.

    Raises:
      PropertyError: as `list_property`.
      ProtocolError: the number of properties, or of their levels, exceeds the limits.
    """
    found: dict[str, PropertyAttributes] = {}
    level = [key]
    for _ in range(limits.nesting):
        below = []
        for parent in level:
            for child, attributes in list_property(parent).items():
                if child not in found and attributes.is_listable:
                    below.append(child)
                found[child] = attributes
            if len(found) > limits.specs:
                raise ProtocolError(
                    f"list_property found more than {limits.specs} properties below {key!r} "
                    "(Limits.specs)"
                )
        if not below:
            return found
        level = below
    raise ProtocolError(
        f"list_property found more than {limits.nesting} levels of properties below {key!r} "
        "(Limits.nesting)"
    )
