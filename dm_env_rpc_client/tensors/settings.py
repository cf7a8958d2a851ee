"""Settings of worlds and agents: nested or flat values by name as Tensor messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting, packing


def pack_settings(settings: Mapping[str, Any]) -> dict[str, dm_env_rpc_pb2.Tensor]:
    """Packs settings for a request.

    Args:
      settings: values by name, nested or with periods in the names. A value is of any
        type that `pack_tensor` accepts, or a Tensor, which is sent unchanged.

    Returns:
      Tensor messages by flat name.

    Raises:
      SpecError: a value or a name cannot be packed, or two values have the same name.
    """
    flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
    for name in flat:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise SpecError(f"setting {name!r}: its name is not valid text: {error}") from error
    return {name: packing.as_tensor(value, f"setting {name!r}") for name, value in flat.items()}
