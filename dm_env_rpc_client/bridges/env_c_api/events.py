"""Events, which the library reports for each advance."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Event", "event_text"]


class Event(NamedTuple):
    """One event.

    Attributes:
      id: the number of its type.
      name: the name of its type.
      observations: the observations of the event: arrays (float64, uint8, int32 or int64,
        of any shape) and `str`. They belong to the caller.
    """

    id: int
    name: str
    observations: tuple[Any, ...]


def event_text(event: Event) -> str:
    """Returns an event as JSON, for agents that receive events as an observation.

    The object has `id`, `name` and `observations`: nested lists of numbers, and strings.
    As in the JSON form of protobuf, numbers that JSON lacks are "NaN", "Infinity" and
    "-Infinity".
    """
    observations = [
        _finite(value.tolist()) if isinstance(value, np.ndarray) else value
        for value in event.observations
    ]
    return json.dumps({"id": event.id, "name": event.name, "observations": observations})


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
