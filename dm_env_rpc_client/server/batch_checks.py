"""What the settings of a batch and the specs of its environments have to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import dm_env
import numpy as np

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.worlds.spec_checks import METHODS, Specs, specs_of
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.batch_specs import VARIABLE
from dm_env_rpc_client.tensors.limits import DEFAULT
from dm_env_rpc_client.tensors.structures import leaves

Settings: TypeAlias = Mapping[str, Any]
"""By flat name."""

MAX_ROWS = 16_384
"""The most environments of one batch: each takes memory and a place in every message."""

MAX_BYTES = DEFAULT.message_bytes
"""What the observations of all rows may take: what a client takes in one message by default."""


def check_num_envs(count: Any) -> int:
    """Returns the number of rows that a client asks for; RequestError if it cannot be had."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r}: expected an integer, got {count!r}"
        )
    if not 1 <= count <= MAX_ROWS:
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r} is {count}; a batch has 1 to {MAX_ROWS} environments"
        )
    return int(count)


def settings_of_rows(settings: Settings, count: int) -> list[dict[str, Any]]:
    """Returns the settings of each row.

    Args:
      settings: by flat name; those that begin with `rows.` have a value for each row.
      count: the number of rows.

    Raises:
      RequestError: one has not as many values as there are rows.
    """
    prefix = batches.ROWS + nesting.SEPARATOR
    shared = {name: value for name, value in settings.items() if not name.startswith(prefix)}
    of_rows: list[dict[str, Any]] = [dict(shared) for _ in range(count)]
    for name, values in settings.items():
        if not name.startswith(prefix):
            continue
        array = np.asarray(values)
        if array.ndim == 0 or len(array) != count:
            raise RequestError.invalid(
                f"setting {name!r} has the shape {list(array.shape)}; expected [{count}, ...], a "
                "value for each row"
            )
        for own, value in zip(of_rows, array, strict=True):
            # As settings of a single environment: int, float, bool and str of Python.
            single = value.item() if isinstance(value, np.generic) else value
            own[name.removeprefix(prefix)] = single
    return of_rows


def are_equal(one: Any, other: Any) -> bool:
    """Whether two structures have the same specs under the same keys, in the same order."""
    return structures.leaves_with_path(one) == structures.leaves_with_path(other)


def check_specs(
    environment: dm_env.Environment, index: int, expected: Specs, has_settings: bool
) -> None:
    """Raises an error if the environment of a row has other specs than those expected.

    Args:
      environment: of the row.
      index: the row.
      expected: the specs of the other rows.
      has_settings: whether a request has settings for single rows, which may be the reason.
    """
    for kind, own, other in zip(METHODS, expected, specs_of(environment), strict=True):
        if not are_equal(own, other):
            text = (
                f"row {index} of the batch has another {kind}() than row 0: {other} instead of "
                f"{own}; the environments of one batch have the same"
            )
            raise RequestError.invalid(text) if has_settings else RuntimeError(text)


def check_size(all_specs: tuple[Any, ...], count: int) -> None:
    """Raises an error if no rows can be made of specs, or too large ones, before they are."""
    for (kind, *path), spec in structures.leaves_with_path(all_specs):
        if isinstance(spec, VARIABLE):
            name = nesting.SEPARATOR.join(map(str, path)) or METHODS[kind].removesuffix("_spec")
            raise SpecError(
                f"{name!r} is of variable length, and rows of a batch have one shape; open a "
                "world for each environment instead"
            )
    # What only the length of a str adds is not known.
    size = count * sum(
        math.prod(map(int, spec.shape)) * spec.dtype.itemsize
        for spec in leaves(all_specs[1:])
        if spec is not None
    )
    if size > MAX_BYTES:
        raise RequestError.invalid(
            f"the observations of {count} rows would take {size} bytes; a batch may have "
            f"{MAX_BYTES}; ask for fewer rows"
        )
