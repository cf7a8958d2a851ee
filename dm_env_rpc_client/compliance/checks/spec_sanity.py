"""Specs: unique names, valid types, shapes and bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import describe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting, specs

_of_specs = functools.partial(reference, "Specs")

_DATA_TYPES = {*dm_env_rpc_pb2.DataType.values()} - {dm_env_rpc_pb2.INVALID_DATA_TYPE}

_SpecsByKind = Iterator[tuple[str, list[dm_env_rpc_pb2.TensorSpec]]]


def _by_kind(trial: Trial) -> _SpecsByKind:
    joined = trial.join().specs
    yield "action", [joined.actions[uid] for uid in sorted(joined.actions)]
    yield "observation", [joined.observations[uid] for uid in sorted(joined.observations)]


def _violation(expected: str, received: str) -> ViolationError:
    return ViolationError(expected, "JoinWorldRequest", received)


def _check_each(
    trial: Trial, expected: str, is_right: Callable[[dm_env_rpc_pb2.TensorSpec], bool]
) -> None:
    for kind, group in _by_kind(trial):
        for spec in group:
            if not is_right(spec):
                raise _violation(expected, f"{kind} {describe(spec)}")


@_of_specs("The names of the actions are unique, and those of the observations.")
def names_are_unique(trial: Trial) -> None:
    """Looks for a name that occurs twice.

    An error: a client takes the name for the key, and loses one of the two.
    """
    for kind, group in _by_kind(trial):
        names = [spec.name for spec in group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _violation(f"{kind}s with unique names", f"{kind} {twice[0]!r} twice")


@overview("Nested actions or observations", "A period in a name is a level of nesting only.")
def no_name_is_the_parent_of_another(trial: Trial) -> None:
    """Looks for `a` beside `a.b`, which would be a value and a group at once.

    An error: a client that nests by names cannot represent it.
    """
    for kind, group in _by_kind(trial):
        try:
            nesting.check_unambiguous(spec.name for spec in group)
        except SpecError as error:
            names = ", ".join(repr(spec.name) for spec in group)
            raise _violation(f"names of {kind}s that can be nested: {error}", names) from None


@overview("TensorSpec", "A spec has a data type of the protocol.")
def data_types_are_valid(trial: Trial) -> None:
    """Looks for 0 and for numbers that the protocol does not define.

    An error: a client cannot pack or unpack the tensor.
    """
    _check_each(trial, "a data type of the protocol", lambda spec: spec.dtype in _DATA_TYPES)


@overview("Variable lengths", "At most one dimension of a tensor is variable.")
def at_most_one_dimension_is_variable(trial: Trial) -> None:
    """Counts the negative elements of each shape.

    An error: a client cannot infer the shape.
    """
    _check_each(
        trial,
        "at most one negative element in the shape",
        lambda spec: sum(size < 0 for size in spec.shape) <= 1,
    )


@overview("Ranges", "A range has one element, or the shape of its tensor, and can be met.")
def bounds_make_sense(trial: Trial) -> None:
    """Checks type, number, NaN and order; bounds per element need a fixed shape.

    An error: no value conforms to the spec, or a client cannot know which ones do.
    """
    for kind, group in _by_kind(trial):
        for spec in group:
            if spec.dtype not in _DATA_TYPES or sum(size < 0 for size in spec.shape) > 1:
                continue  # Another check reports it; here it would only hide the bounds.
            try:
                specs.check_spec(spec, f"{kind} {spec.name!r}")
            except SpecError as error:
                raise _violation(f"valid bounds: {error}", describe(spec)) from None


@_of_specs(
    "The specs tell the client which values it can send.",
    needs=(
        names_are_unique,
        no_name_is_the_parent_of_another,
        data_types_are_valid,
        at_most_one_dimension_is_variable,
        bounds_make_sense,
    ),
)
def the_specs_can_be_used(trial: Trial) -> None:
    """Chooses a value for each action, as all later checks do.

    An error: a client cannot act.
    """
    agent = trial.join()
    try:
        agent.valid_actions()
        len(agent.observations)
    except NotOfferedError as error:
        raise _violation(f"specs that can be used: {error}", describe(agent.specs)) from None
