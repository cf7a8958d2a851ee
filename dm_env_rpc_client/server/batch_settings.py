"""The settings of each row, derived from those that clients send with a CreateWorld or Reset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.tensors import nesting

Settings: TypeAlias = Mapping[str, Any]
"""The values of settings, by flat name."""

MAX_ROWS = 16_384
"""Maximum number of environments in a batch. Each environment uses memory and adds to the size of
every message."""

_PREFIX = batches.ROWS + nesting.SEPARATOR


@dataclasses.dataclass(frozen=True)
class AskedRows:
    """The requested rows of a batch: either all rows, or the part hosted by one process.

    Attributes:
      settings: the settings of each of these rows.
      mode: the requested autoreset mode.
      has_row_settings: whether the request has settings for single rows.
      first: the index of the first of these rows in the batch.
      total: the number of rows of the batch.
    """

    settings: Sequence[Settings]
    mode: str
    has_row_settings: bool
    first: int
    total: int

    @classmethod
    def of(cls, settings: Settings) -> AskedRows:
        """Return the request for all rows of a batch.

        Args:
          settings: the settings of a world, by flat name, including `num_envs`.

        Raises:
          RequestError: the number of rows, or a setting of rows, is invalid.
        """
        own = dict(settings)
        count = check_num_envs(own.pop(batches.NUM_ENVS))
        mode = str(own.pop(batches.AUTORESET_MODE, "NEXT_STEP"))
        if own.pop(batches.STEP_MASK, False):
            raise RequestError.invalid(
                f"setting {batches.STEP_MASK!r} is not supported, because all rows of a batch "
                "step together. To step only some environments, open several batches, or a world "
                "for each environment"
            )
        has_row_settings = any(name.startswith(_PREFIX) for name in own)
        return cls(_settings_of_rows(own, count), mode, has_row_settings, 0, count)

    def part(self, start: int, stop: int) -> AskedRows:
        """Return the request for a contiguous part of the rows."""
        return dataclasses.replace(self, settings=self.settings[start:stop], first=start)


def of_reset(settings: Settings, count: int) -> dict[int, dict[str, Any]]:
    """Return the settings of each row that a Reset selects, by row index.

    Args:
      settings: the settings of the Reset, nested or flat.
      count: the number of rows.

    Raises:
      ValueError: the mask, or a setting, is invalid.
    """
    flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
    mask = flat.pop(batches.RESET_MASK, None)
    if mask is not None:
        mask = batches.checked_reset_mask(mask, count)
    try:
        of_rows = _settings_of_rows(flat, count)
    except RequestError as error:
        # `configure` reports invalid settings as any other environment does.
        raise ValueError(str(error)) from error
    return {row: of_rows[row] for row in indices(mask, count)}


def indices(mask: npt.NDArray[np.bool_] | None, count: int) -> Sequence[int]:
    """Return the indices of the rows that a mask selects, or of all rows if the mask is None."""
    return range(count) if mask is None else np.flatnonzero(mask).tolist()


def check_num_envs(count: Any) -> int:
    """Return the number of rows that a client requests, or raise RequestError if it is invalid."""
    # bool is a subclass of int: True is no number of rows.
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r}: expected an integer, got {count!r}"
        )
    if not 1 <= count <= MAX_ROWS:
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r} is {count}; a batch has 1 to {MAX_ROWS} environments"
        )
    return int(count)


def _settings_of_rows(settings: Settings, count: int) -> list[dict[str, Any]]:
    """Return the settings of each row.

    Args:
      settings: values by flat name; names that begin with `rows.` have one value per row.
      count: the number of rows.

    Raises:
      RequestError: the number of values differs from the number of rows.
    """
    shared = {name: value for name, value in settings.items() if not name.startswith(_PREFIX)}
    of_rows: list[dict[str, Any]] = [dict(shared) for _ in range(count)]
    for name, values in settings.items():
        if not name.startswith(_PREFIX):
            continue
        array = np.asarray(values)
        if array.ndim == 0 or len(array) != count:
            raise RequestError.invalid(
                f"setting {name!r} has the shape {list(array.shape)}; expected [{count}, ...], "
                "one value per row"
            )
        for own, value in zip(of_rows, array, strict=True):
            # Python's int, float, bool and str, as for a single environment.
            single = value.item() if isinstance(value, np.generic) else value
            own[name.removeprefix(_PREFIX)] = single
    return of_rows
