"""Convert the settings of several environments to those of one batched world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.tensors import nesting, packing
from dm_env_rpc_client.tensors.settings import pack_settings

Settings: TypeAlias = (
    Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]
)
"""One mapping of settings for all environments, a sequence with one mapping per environment, or a
function that returns the mapping for an index."""

_Packed: TypeAlias = Mapping[str, dm_env_rpc_pb2.Tensor]


def for_each(count: int, settings: Settings, what: str) -> list[Mapping[str, Any]]:
    """Return the settings of each of `count` environments, or raise SpecError for invalid ones."""
    if callable(settings):
        each = [settings(index) for index in range(count)]
    elif isinstance(settings, Mapping):
        each = [settings] * count
    else:
        is_iterable = isinstance(settings, Iterable) and not isinstance(settings, str)
        each = list(settings) if is_iterable else []
    if len(each) != count or not all(isinstance(own, Mapping) for own in each):
        raise SpecError(
            f"{what} must be a mapping, a sequence of {count} mappings (one for each "
            f"environment) or a function that returns a mapping for an index, got "
            f"{arguments.shown(settings)}"
        )
    return each


def creation_settings(each: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the settings that create a world with one row for each of the given environments.

    Args:
      each: the settings of each environment.

    Returns:
      The common settings by their names, and the others as `rows.NAME`; None if that form is
      impossible, because some environments have other names or values of other shapes.
    """
    packed = {place: pack_settings(own) for place, own in enumerate(each)}
    if len({_signature(own) for own in packed.values()}) > 1:
        return None
    # A user's setting with the name of a batch setting would change the batch.
    if any(name in batches.SETTINGS for name in packed[0]):
        return None
    return _stacked(packed, len(packed))


def reset_settings(each: Mapping[int, Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the settings of the successive Resets that begin sequences in some rows.

    Args:
      each: the settings of the rows, by their places in the world.
      count: the number of rows of the world.

    Raises:
      SpecError: a setting cannot be packed.
    """
    alike: dict[Any, dict[int, _Packed]] = {}
    for place, own in each.items():
        packed = pack_settings(own)
        alike.setdefault(_signature(packed), {})[place] = packed
    found = []
    for rows in alike.values():
        settings = _stacked(rows, count)
        if len(rows) < count:
            settings[batches.RESET_MASK] = np.isin(np.arange(count), list(rows))
        found.append(settings)
    return found


def _signature(packed: _Packed) -> tuple[Any, ...]:
    """Return a key that is the same for all settings that can be stacked with each other."""
    return tuple(
        sorted(
            (name, tensor.WhichOneof("payload") or "", tuple(tensor.shape))
            for name, tensor in packed.items()
        )
    )


def _stacked(rows: Mapping[int, _Packed], count: int) -> dict[str, Any]:
    first = next(iter(rows.values()))
    settings: dict[str, Any] = {}
    for name, tensor in first.items():
        if all(own[name] == tensor for own in rows.values()):
            settings[name] = tensor
            continue
        # The other rows of the array are masked out, so they repeat the first row's value.
        values = [packing.unpack_tensor(rows.get(place, first)[name]) for place in range(count)]
        settings[batches.ROWS + nesting.SEPARATOR + name] = np.array(values)
    return settings
