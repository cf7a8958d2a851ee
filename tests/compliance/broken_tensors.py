"""Servers whose specs, observations or actions are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env_rpc.v1 import tensor_utils

from tests.compliance.breakage import breaks
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


@breaks("names_are_unique")
class NamesTwoActionsAlike(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.actions[GRIP].name = "path"


@breaks("no_name_is_the_parent_of_another")
class NamesAnObservationLikeTheParentOfAnother(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.observations[HEARD].name = "arm"


@breaks("at_most_one_dimension_is_variable")
class HasTwoVariableDimensions(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.actions[PATH].shape[:] = [-1, -1]


@breaks("data_types_are_valid")
class HasADataTypeThatThereIsNoneOf(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.observations[PICTURE].dtype = 0


@breaks("bounds_make_sense")
class HasAMinimumAboveItsMaximum(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.observations[STEPS].min.int64s.array[:] = [100]


@breaks("bounds_make_sense")
class HasABoundThatIsNan(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.actions[PATH].max.doubles.array[:] = [float("nan")]


@breaks("bounds_make_sense")
class HasBoundsOfAnotherNumberThanElements(_WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        del specs.actions[FORCE].min.floats.array[5]


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


@breaks("unknown_observations_are_refused")
class TakesUnknownObservations(Session):
    def check_requested(self, requested: set[int]) -> None:
        requested &= set(make_specs().observations)


@breaks("duplicate_requests_are_redundant")
class RefusesDuplicateRequests(Session):
    def on_step(self, request: Any) -> Any:
        uids = request.requested_observations
        if len(set(uids)) < len(uids):
            raise RequestError("twice")
        return super().on_step(request)


class _Observing(Session):
    def observe(self, requested: set[int]) -> Any:
        observations = super().observe(requested)
        for uid in requested:
            self.spoil(uid, observations[uid])
        return observations

    def spoil(self, uid: int, tensor: Any) -> None:
        raise NotImplementedError


@breaks("observations_have_the_shape_and_type_of_their_specs")
class ObservesAnotherType(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == REWARD:
            tensor.CopyFrom(tensor_utils.pack_tensor(1.0))


@breaks("observations_have_the_shape_and_type_of_their_specs")
class ObservesAnotherShape(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == PICTURE:
            tensor.shape[:] = [2, 3]


@breaks("observations_have_the_shape_and_type_of_their_specs")
class ObservesFewerElementsThanTheShape(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == PICTURE:
            tensor.uint8s.array = b"12345"


@breaks("observations_are_within_their_bounds")
class ObservesWhatIsOutOfBounds(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == STEPS:
            tensor.int64s.array[:] = [-1]


@breaks("observations_are_within_their_bounds")
class ObservesInColumnMajorOrder(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == SEEN_FORCE:
            tensor.floats.array[:] = list(np.reshape(tensor.floats.array, (2, 3)).T.ravel())


@breaks("observations_are_within_their_bounds")
class ObservesNanWithinBounds(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == SEEN_PATH:
            tensor.doubles.array[0] = np.nan


class _Unbounded(_Observing, _WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        for field in ("min", "max"):
            specs.observations[SEEN_PATH].ClearField(field)


@breaks("observations_without_bounds_are_numbers")
class ObservesNan(_Unbounded):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == SEEN_PATH:
            tensor.doubles.array[-1] = np.nan


@breaks("observations_without_bounds_are_numbers")
class ObservesNanInTheLastStep(_Unbounded):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == SEEN_PATH and not self.running:
            tensor.doubles.array[-1] = np.nan


@breaks("rewards_and_discounts_are_numbers")
class RewardsWithNan(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == REWARD:
            tensor.floats.array[:] = [np.nan]


@breaks("rewards_and_discounts_are_numbers")
class RewardsTheLastStepWithNan(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == REWARD and not self.running:
            tensor.floats.array[:] = [np.nan]


@breaks("rewards_and_discounts_are_numbers")
class DiscountsWithNan(RewardsWithNan, _WithSpecs):
    def spoil_specs(self, specs: Any) -> None:
        specs.observations[REWARD].name = "discount"


# Actions.


@breaks("unknown_actions_are_refused")
class TakesUnknownActions(Session):
    def check_uid(self, uid: int) -> None:
        pass


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
class TakesActionsThatAreOutOfRange(Session):
    def check_bounds(self, action: Any, value: Any) -> None:
        pass


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
