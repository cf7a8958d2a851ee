"""The actions of steps that are sent before earlier ones are answered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.tensors import nesting

__all__ = ["per_step", "take"]


def take(
    prepared: Iterator[EncodedRequest], count: int
) -> tuple[list[EncodedRequest], Exception | None]:
    """Takes requests from an iterator, up to the first that raises an error.

    So an invalid action is raised after the steps before it were taken.

    Args:
      prepared: the requests, made as they are taken.
      count: the maximum number to take.

    Returns:
      The requests, and the error that was raised in place of the next one, or None.
    """
    taken: list[EncodedRequest] = []
    try:
        # The requests before an error stay in the list.
        taken.extend(itertools.islice(prepared, count))
    except Exception as error:
        return taken, error
    return taken, None


def per_step(actions: Iterable[Any] | Mapping[str, Any]) -> Iterable[Any]:
    """Returns the action of each step.

    Args:
      actions: an iterable of actions; or one structure whose leaves have a leading time axis.

    Returns:
      An iterable of actions.

    Raises:
      SpecError: the leaves have different lengths, or there are none.
    """
    if not isinstance(actions, Mapping):
        return actions
    flat = nesting.flatten_dict(actions, nesting.SEPARATOR, strict=False)
    lengths = {name: len(values) for name, values in flat.items()}
    if len(set(lengths.values())) != 1:
        raise SpecError(
            f"every action of an unroll has the same number of steps, got {lengths or 'no actions'}"
        )
    length = next(iter(lengths.values()))
    for name, values in flat.items():
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
            flat[name] = values.tolist()  # Python ints are encoded faster than NumPy's.
    return [{name: values[t] for name, values in flat.items()} for t in range(length)]
