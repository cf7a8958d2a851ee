"""Packing of world and agent settings, nested or with flat names, as Tensor messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting, packing


def pack_settings(
    settings: Mapping[str, Any], name: str = "settings"
) -> dict[str, dm_env_rpc_pb2.Tensor]:
    """Pack settings as Tensor messages for a request.

    Args:
      settings: values by name, nested or with periods in the names. A value can have any type that
        `pack_tensor` accepts, or can be a Tensor, which is sent unchanged.
      name: the name of the argument in errors.

    Returns:
      Tensor messages by flat name.

    Raises:
      SpecError: the settings are not a mapping, a value or a name cannot be packed, or two values
        have the same name.
    """
    arguments.mapping(name, settings, expected="a mapping of names to values")
    flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
    for key in flat:
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise SpecError(f"setting {key!r}: its name is not valid text: {error}") from error
    return {key: packing.as_tensor(value, f"setting {key!r}") for key, value in flat.items()}
