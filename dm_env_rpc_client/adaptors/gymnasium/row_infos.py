"""The infos of a batch's rows, which the server collects to send them in one answer."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.info_observation import (
    EXTRAS,
    FINAL_INFO,
    FINAL_OBSERVATION,
    INFO,
    encoded_rows,
    encoded_stack,
)
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.rows import Infos
from dm_env_rpc_client.system.foreign_environments import described

_INDEX = operator.itemgetter(0)

_NUMBERS = (int, float, np.number)
"""The number types that Gymnasium stacks into typed arrays, including bool, a subclass of int."""


_MANY = 24
"""The minimum number of infos for which assigning by key is faster than assigning by info."""


class StackedInfos(Infos):
    """The infos of all rows, stacked as Gymnasium stacks them.

    Rows may step at the same time, each in its own thread. Infos are copied, so later changes by
    the environments have no effect.

    Args:
      count: the number of rows.
      is_exact: whether the client supports all types of `value_json`.
    """

    name = EXTRAS

    def __init__(self, count: int, is_exact: bool):
        self.num_envs = count
        self._is_exact = is_exact
        # Pairs of row and infos in the order of arrival; a row may have several.
        self._infos: list[tuple[int, Any]] = []

    def of(self, count: int) -> StackedInfos:
        """Return empty infos for `count` rows; see `Infos`."""
        return StackedInfos(count, self._is_exact)

    def put(self, index: int, info: Any) -> None:
        """Record the info of a row."""
        self._infos.append((index, value_json.snapshot(info)))

    def taken(self) -> tuple[list[tuple[int, Any]], dict[int, Exception]]:
        """Return the infos of all rows, and clear them; see `Infos`."""
        infos, self._infos = self._infos, []
        return infos, {}

    def put_taken(self, index: int, said: Any) -> None:
        """Record a row's infos; see `Infos`."""
        self._infos.append((index, said))

    def final(self, observation: Any, info: Any) -> Any:
        """Prepare an episode's last observation and info for `put_final`.

        Args:
          observation: the last observation of an episode, as clients receive it.
          info: the info of the same step.
        """
        return {
            FINAL_OBSERVATION: value_json.snapshot(observation),
            FINAL_INFO: value_json.snapshot(info),
        }

    def put_final(self, index: int, final: Any) -> None:
        """Record a row's last observation and info, before the info of its next episode."""
        self._infos.append((index, final))

    def encoded(self, both: npt.NDArray[np.bool_]) -> tuple[str, dict[int, Exception]]:
        """Return the infos as JSON and any errors, and clear the infos; see `Infos`."""
        if not self._infos and not both.any():  # As in most steps.
            return "", {}
        of_rows, self._infos = sorted(self._infos, key=_INDEX), []
        infos: dict[str, Any] = {}
        others: Sequence[tuple[int, Any]] = of_rows
        if len(of_rows) >= _MANY:
            # On failure, the loop below raises the same error and knows the row.
            with contextlib.suppress(Exception):
                infos, others = self._stack_numbers(of_rows)
        failures: dict[int, Exception] = {}
        for index, info in others:
            if index not in failures:
                try:
                    infos = self._add_info(infos, info, index)
                except Exception as error:  # Its shape differs from the infos of other rows.
                    failures[index] = error
        return encoded_stack(infos, both, self._is_exact), failures

    def _stack_numbers(
        self, of_rows: Sequence[tuple[int, Any]]
    ) -> tuple[dict[str, Any], Sequence[tuple[int, Any]]]:
        """Stack the infos that have the same keys as the first info, with one assignment per key.

        For 64 rows this takes half as long as one assignment for each row and key; see
        `tests.benchmarks.versions --only "RemoteVectorEnv of 64"`. The method stacks nothing
        unless the numbers of each key have one type and no row has several infos.

        Returns:
          The stacked infos, and the remaining infos in their original order.
        """
        names = list(of_rows[0][1])
        rows: list[int] = []
        alike: list[dict[Any, Any]] = []
        others: list[tuple[int, Any]] = []
        for row in of_rows:
            if type(row[1]) is dict and list(row[1]) == names:
                rows.append(row[0])
                alike.append(row[1])
            else:
                others.append(row)
        columns = list(zip(*map(dict.values, alike), strict=True))
        if (
            # A mask is named after its key as text, and different keys may have the same text.
            {*map(type, itertools.chain.from_iterable(alike))} != {str}
            or any({*map(type, column)} - {type(column[0])} for column in columns)
            or not all(issubclass(type(column[0]), _NUMBERS) for column in columns)
            # Infos of a final step must be stacked before those of the next episode.
            or (others and len({index for index, _ in of_rows}) < len(of_rows))
        ):
            return {}, of_rows
        infos = self._add_info({}, alike[0], rows[0])
        for name, column in zip(names, columns, strict=True):
            infos[name][rows] = column
            infos[f"_{name}"][rows] = True
        return infos, others

    # Borrowed from Gymnasium's vector environments; of `self` it needs only `num_envs`.
    _add_info: Any = gymnasium.vector.VectorEnv._add_info


class OwnInfos(Infos):
    """Infos kept separately for each row; see `StackedInfos`."""

    name = EXTRAS

    def __init__(self) -> None:
        # As JSON values, which share no objects with the environments.
        self._infos: dict[int, dict[str, Any]] = {}
        # Reported as errors of their rows once all rows have stepped.
        self._errors: dict[int, Exception] = {}

    def of(self, count: int) -> OwnInfos:
        """Return empty infos for `count` rows; see `Infos`."""
        return OwnInfos()

    def taken(self) -> tuple[list[tuple[int, Any]], dict[int, Exception]]:
        """Return the infos of all rows and any errors, and clear both; see `Infos`."""
        infos, self._infos = self._infos, {}
        errors, self._errors = self._errors, {}
        return list(infos.items()), errors

    def put_taken(self, index: int, said: Any) -> None:
        """Record a row's infos; see `Infos`."""
        self._infos[index] = said

    def put(self, index: int, info: Any) -> None:
        """Record the info of a row."""
        try:
            self._infos.setdefault(index, {})[INFO] = _jsonable(info)
        except Exception as error:
            self._errors[index] = error

    def final(self, observation: Any, info: Any) -> Any:
        """Prepare an episode's last observation and info for `put_final`."""
        try:
            own = _jsonable(info or {})
        except Exception as error:
            return error
        exact = value_json.to_jsonable(observation, value_json.INFO_LEVELS, is_exact=True)
        return {FINAL_OBSERVATION: exact, FINAL_INFO: own}

    def put_final(self, index: int, final: Any) -> None:
        """Record a row's last observation and info."""
        if isinstance(final, Exception):
            self._errors[index] = final
        else:
            self._infos[index] = final

    def encoded(self, both: npt.NDArray[np.bool_]) -> tuple[str, dict[int, Exception]]:
        """Return the infos as JSON and any errors, and clear both; see `Infos`."""
        infos, self._infos = self._infos, {}
        errors, self._errors = self._errors, {}
        try:
            text = encoded_rows(infos, both)
        except SpecError:  # For instance, an integer with more digits than Python converts.
            for index, own in infos.items():
                try:
                    value_json.text_of(own)
                except SpecError as error:
                    errors[index] = error
            infos = {index: own for index, own in infos.items() if index not in errors}
            text = encoded_rows(infos, both)
        return text, errors


def _jsonable(info: Any) -> Any:
    """Convert an info to a JSON value, or raise the error that is reported for its row."""
    if not isinstance(info, Mapping):
        raise TypeError(f"the info is {described(info)}; expected a dict")
    return value_json.to_jsonable(info, value_json.INFO_LEVELS, is_exact=True, where=INFO)
