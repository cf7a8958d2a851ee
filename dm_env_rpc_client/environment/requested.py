"""The adaptor arguments that select the observations, their form, and the extensions."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.tensors import array_kinds
from dm_env_rpc_client.tensors.spec_manager import SpecManager


class AutoObservations(enum.Flag):
    """Flags that select the observations to request when none are listed by name.

    The regular observations are always requested. `reward` and `discount` are requested for the
    fields of the TimeStep; they are also observations only if this value selects them.
    """

    REQUEST_REGULAR_OBSERVATIONS = 0
    REQUEST_REWARD = 1
    REQUEST_DISCOUNT = 2
    REQUEST_ALL_OBSERVATIONS = REQUEST_REWARD | REQUEST_DISCOUNT


def check_adapting(given: Mapping[str, Any]) -> None:
    """Check the adaptor arguments that can be checked without specs.

    Args:
      given: the passed arguments by name; other names are ignored, since a subclass may accept
        more arguments.

    Raises:
      SpecError: an argument has a wrong type.
    """
    if "adaptor_class" in given:
        arguments.function("adaptor_class", given["adaptor_class"], expected="a class")
    for name in ("nested_tensors", "unwrap_single"):
        if name in given:
            arguments.flag(name, given[name])
    array_kinds.check_names(given.get("arrays", "numpy"), given.get("device"))
    requested = given.get("requested_observations")
    if not isinstance(requested, AutoObservations):
        arguments.names(
            "requested_observations",
            requested,
            expected="a list of names, an AutoObservations",
            none="None for the default",
        )
    extensions = given.get("extensions")
    if not callable(extensions):
        expected = "a mapping of names to objects, or a function that makes one"
        arguments.mapping("extensions", extensions, expected=expected, none="None")
    arguments.function("rejoin", given.get("rejoin"), none="None for that of the world")


def visible_names(
    observations: SpecManager, requested: Sequence[str] | AutoObservations
) -> set[str]:
    """Return the names of the observations in a TimeStep.

    Args:
      observations: all observations of the environment.
      requested: names and patterns, or a selection of the usual observations.

    Raises:
      UnknownNameError: no observation has a requested name or matches a pattern.
    """
    names = observations.names()
    if isinstance(requested, AutoObservations):
        hidden = set()
        if AutoObservations.REQUEST_REWARD not in requested:
            hidden.add(REWARD)
        if AutoObservations.REQUEST_DISCOUNT not in requested:
            hidden.add(DISCOUNT)
        return set(names) - hidden
    visible: set[str] = set()
    for pattern in requested:
        # An exact name first: names may contain the characters of patterns.
        matches = {pattern} & names or set(fnmatch.filter(names, pattern))
        if not matches:
            observations.field(pattern)  # Raises an error that lists the names.
        visible |= matches
    return visible
