"""Servers whose specs, observations or actions are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dm_env_rpc.v1 import tensor_utils

from tests.compliance.breakage import BROKEN, breaks
from tests.compliance.playground import (
    FORCE,
    GRIP,
    HEARD,
    PATH,
    PICTURE,
    REWARD,
    SEEN_FORCE,
    SEEN_PATH,
    STEPS,
    RequestError,
    Session,
    make_specs,
)

# Specs.


class _WithSpecs(Session):
    def specs(self) -> Any:
        specs = super().specs()
        self.spoil_specs(specs)
        return specs

    def spoil_specs(self, specs: Any) -> None:
        raise NotImplementedError


Spoil = Callable[..., object]

_SPECS: dict[str, tuple[str, Spoil]] = {
    "names two actions alike": (
        "names_are_unique", lambda specs: setattr(specs.actions[GRIP], "name", "path"),
    ),
    "names an observation like the parent of another": (
        "no_name_is_the_parent_of_another",
        lambda specs: setattr(specs.observations[HEARD], "name", "arm"),
    ),
    "has two variable dimensions": (
        "at_most_one_dimension_is_variable",
        lambda specs: _put(specs.actions[PATH].shape, [-1, -1]),
    ),
    "has a data type that there is none of": (
        "data_types_are_valid", lambda specs: setattr(specs.observations[PICTURE], "dtype", 0),
    ),
    "has a minimum above its maximum": (
        "bounds_make_sense", lambda specs: _put(specs.observations[STEPS].min.int64s.array, [100]),
    ),
    "has a bound that is nan": (
        "bounds_make_sense", lambda specs: _put(specs.actions[PATH].max.doubles.array, [np.nan]),
    ),
    "has bounds of another number than elements": (
        "bounds_make_sense", lambda specs: specs.actions[FORCE].min.floats.array.pop(),
    ),
}  # fmt: skip
"""What is wrong with the specs, the check that is to notice, and what spoils them."""


def _put(repeated: Any, values: Any) -> None:
    repeated[:] = values


for _wrong, (_check, _spoil) in _SPECS.items():
    BROKEN[_wrong] = _check, type("Spoiled", (_WithSpecs,), {"spoil_specs": staticmethod(_spoil)})


# Observations.


@breaks("nothing_is_returned_unless_requested")
class ReturnsWhatWasNotRequested(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(set(make_specs().observations))


@breaks("what_is_requested_is_returned")
class ReturnsOneObservationTooFew(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(requested - {PICTURE})


@breaks("the_last_step_returns_observations")
class HasNoObservationsInTheLastStep(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(requested if self.running else set())


@breaks("duplicate_requests_are_redundant")
class RefusesDuplicateRequests(Session):
    def on_step(self, request: Any) -> Any:
        uids = request.requested_observations
        if len(set(uids)) < len(uids):
            raise RequestError("twice")
        return super().on_step(request)


class _Observing(Session):
    uid: int

    def observe(self, requested: set[int]) -> Any:
        observations = super().observe(requested)
        if self.uid in requested:
            self.spoil(observations[self.uid])
        return observations

    def spoil(self, tensor: Any) -> None:
        raise NotImplementedError


class _Unbounded(_Observing, _WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        for field in ("min", "max"):
            specs.observations[SEEN_PATH].ClearField(field)


class _Discounting(_Observing, _WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.observations[REWARD].name = "discount"


def _in_the_last_step(spoil: Spoil) -> Spoil:
    return lambda session, tensor: session.running or spoil(session, tensor)


def _column_major(_: Session, tensor: Any) -> None:
    tensor.floats.array[:] = list(np.reshape(tensor.floats.array, (2, 3)).T.ravel())


def _nan_at(index: int) -> Spoil:
    return lambda _, tensor: tensor.doubles.array.__setitem__(index, np.nan)


def _nan(_: Session, tensor: Any) -> None:
    tensor.floats.array[:] = [np.nan]


_FORM = "observations_have_the_shape_and_type_of_their_specs"
_BOUNDS = "observations_are_within_their_bounds"
_NUMBERS = "observations_without_bounds_are_numbers"
_REWARDS = "rewards_and_discounts_are_numbers"

_OBSERVED: dict[str, tuple[str, type[_Observing], int, Spoil]] = {
    "observes another type": (
        _FORM, _Observing, REWARD, lambda _, tensor: tensor.CopyFrom(tensor_utils.pack_tensor(1.0)),
    ),
    "observes another shape": (
        _FORM, _Observing, PICTURE, lambda _, tensor: _put(tensor.shape, [2, 3]),
    ),
    "observes fewer elements than the shape": (
        _FORM, _Observing, PICTURE, lambda _, tensor: setattr(tensor.uint8s, "array", b"12345"),
    ),
    "observes what is out of bounds": (
        _BOUNDS, _Observing, STEPS, lambda _, tensor: _put(tensor.int64s.array, [-1]),
    ),
    "observes in column major order": (_BOUNDS, _Observing, SEEN_FORCE, _column_major),
    "observes nan within bounds": (_BOUNDS, _Observing, SEEN_PATH, _nan_at(0)),
    "observes nan": (_NUMBERS, _Unbounded, SEEN_PATH, _nan_at(-1)),
    "observes nan in the last step": (
        _NUMBERS, _Unbounded, SEEN_PATH, _in_the_last_step(_nan_at(-1)),
    ),
    "rewards with nan": (_REWARDS, _Observing, REWARD, _nan),
    "rewards the last step with nan": (_REWARDS, _Observing, REWARD, _in_the_last_step(_nan)),
    "discounts with nan": (_REWARDS, _Discounting, REWARD, _nan),
}  # fmt: skip
"""What is wrong, the check that is to notice, the server, the observation, and what spoils it."""

for _wrong, (_check, _base, _uid, _spoil) in _OBSERVED.items():
    BROKEN[_wrong] = _check, type("Spoiled", (_base,), {"uid": _uid, "spoil": _spoil})


# Actions.

for _wrong, _check, _method in (
    ("takes unknown observations", "unknown_observations_are_refused", "check_requested"),
    ("takes unknown actions", "unknown_actions_are_refused", "check_uid"),
    ("takes actions that are out of range", "actions_out_of_range_are_refused", "check_bounds"),
    ("goes on stepping after a leave", "step_and_reset_need_a_join", "check_joined"),
):
    BROKEN[_wrong] = _check, type("Careless", (Session,), {_method: lambda *_: None})


@breaks("actions_of_another_type_are_refused")
class TakesActionsOfAnotherType(Session):
    def check_type(self, action: Any, tensor: Any) -> None:
        if tensor.WhichOneof("payload") is None:
            raise RequestError("empty")


@breaks("actions_without_payload_are_refused")
class TakesActionsWithoutAPayload(Session):
    def unpack(self, tensors: Mapping[int, Any]) -> dict[str, Any]:
        return super().unpack(
            {uid: tensor for uid, tensor in tensors.items() if tensor.WhichOneof("payload")}
        )


@breaks("actions_of_another_shape_are_refused")
class TakesActionsOfAnotherShape(Session):
    def check_shape(self, action: Any, value: Any) -> None:
        pass

    def check_bounds(self, action: Any, value: Any) -> None:
        with contextlib.suppress(ValueError):  # Shapes that do not fit.
            super().check_bounds(action, value)


@breaks("actions_out_of_range_are_refused")
class LooksAtTheFirstBoundOfAnElementOnly(Session):
    def bounds(self, action: Any) -> tuple[Any, Any]:
        low, high = super().bounds(action)
        return (None, None) if low is None else (np.min(low), np.max(high))


@breaks("actions_out_of_range_are_refused")
class HasOneMaximumForAllThatIsOneTooHigh(Session):
    def bounds(self, action: Any) -> tuple[Any, Any]:
        low, high = super().bounds(action)
        return (low, high + 1) if action.name == "arm.grip" else (low, high)


@breaks("actions_at_their_bounds_are_taken")
class HasBoundsThatAreExclusive(Session):
    def check_bounds(self, action: Any, value: Any) -> None:
        low, high = self.bounds(action)
        if low is not None and not (np.all(value > low) and np.all(value < high)):
            raise RequestError("out of range")


@breaks("one_element_is_broadcast")
class DoesNotBroadcast(Session):
    def to_array(self, tensor: Any) -> Any:
        value = tensor_utils.unpack_proto(tensor)
        try:
            return value.reshape(list(tensor.shape))
        except ValueError as error:
            raise RequestError(str(error)) from error


@breaks("a_negative_length_is_inferred")
class DoesNotInferLengths(Session):
    def to_array(self, tensor: Any) -> Any:
        if any(size < 0 for size in tensor.shape):
            raise RequestError("negative length")
        return super().to_array(tensor)


@breaks("actions_at_their_bounds_are_taken")
class TakesActionsForColumnMajor(Session):
    def to_array(self, tensor: Any) -> Any:
        value = super().to_array(tensor)
        return value.ravel().reshape(value.shape, order="F") if np.ndim(value) else value


@breaks("a_variable_dimension_takes_any_length")
class TakesOneLengthOnlyWhereItIsVariable(Session):
    def check_shape(self, action: Any, value: Any) -> None:
        super().check_shape(action, value)
        if action.name == "path" and np.shape(value)[1] > 3:
            raise RequestError("too long")
