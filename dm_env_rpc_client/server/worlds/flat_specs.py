"""Conversion of nested dm_env specs and values to a flat form, keyed by name, and back.

Periods join the levels of a name. An index into a list or tuple is a level like any other, and a
key that contains a period forms several levels. A structure that is a single array has the name
"action" or "observation". The reward and the discount are separate observations ("Reward and
discount" in the protocol overview). Names and UIDs follow the order of the environment's own
mappings.

The discount of an environment that does not override `discount_spec` is not an observation. Clients
infer such a discount from the state after each step: it is 0 if the step TERMINATED a sequence, and
otherwise 1. Moreover, an observation could not express that a FIRST step has no discount.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
from dm_env.specs import Array, BoundedArray

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.worlds.world import Game
from dm_env_rpc_client.system.foreign_environments import (
    INHERIT_FROM_GYMNASIUM,
    class_name,
    described,
)
from dm_env_rpc_client.tensors import nesting, specs, structures

Specs: TypeAlias = tuple[Any, Any, Any, Any]
"""The specs of actions, observations, reward and discount. Each spec may be nested, flat or
None; the discount's is None if it follows from the states."""

METHODS = ("action_spec", "observation_spec", "reward_spec", "discount_spec")

_USED = ("name", "shape", "dtype")
"""The attributes that a spec must have. Environments written for the one-file server have specs
whose classes are defined in that file."""


def specs_of(hosted: Any, *player: Any) -> Specs:
    """Return the specs of an environment or of a game's player.

    Args:
      hosted: the environment or the game.
      *player: the player.

    Raises:
      TypeError: a method did not return specs.
    """
    found = []
    for method in METHODS:
        if method == "discount_spec":
            structure = discount_spec_of(hosted, *player)
        else:
            structure = getattr(hosted, method)(*player)
        # A bare spec is the common case, and valid by its type.
        if not isinstance(structure, Array):
            _check(structure, hosted, method)
        found.append(structure)
    action, observation, reward, discount = found
    return action, observation, reward, discount


def discount_spec_of(hosted: Any, *player: Any) -> Any:
    """Return the discount spec of an environment or a game, or None if it is inherited.

    What counts is the override and not the spec: an environment whose own spec equals dm_env's
    default can return any discount within its bounds.
    """
    method = hosted.discount_spec
    return None if getattr(method, "__func__", None) in _INHERITED else method(*player)


_INHERITED = (dm_env.Environment.discount_spec, Game.discount_spec)

DEFAULT_DISCOUNT = BoundedArray((), float, 0.0, 1.0, "discount")
"""The default result of `dm_env.Environment.discount_spec`."""


def _check(structure: Any, hosted: Any, method: str) -> None:
    if structure is None:
        return
    where = f"{method} of {class_name(hosted)}"
    if _is_space(structure):
        raise _error(f"{where} returned {structure}", structure)
    for path, leaf in structures.leaves_with_path(structure):
        # By its attributes, since the one-file server has spec classes of its own.
        if isinstance(leaf, Array) or all(hasattr(leaf, name) for name in _USED):
            continue
        found = str(leaf) if _is_space(leaf) else described(leaf)
        if not path:
            raise _error(f"{where} returned {found}", leaf)
        name = nesting.SEPARATOR.join(map(str, path))
        raise _error(f"{where} returned {described(structure)}, in which {name!r} is {found}", leaf)


def _error(text: str, found: Any) -> TypeError:
    advice = "return a spec, such as dm_env.specs.Array(shape, dtype), or nested dicts of specs"
    if _is_space(found):
        advice = f"{INHERIT_FROM_GYMNASIUM}; or {advice}"
    return TypeError(f"{text}; expected dm_env specs: {advice}")


def _is_space(value: Any) -> bool:
    """Return whether a value has the members of a Gymnasium or gym space."""
    return hasattr(value, "sample") and hasattr(value, "contains")


_OF_STEPS = {name: f"the name of the {name} of a step" for name in (REWARD, DISCOUNT)}


class FlatSpecs:
    """The specs of one agent, with a flat name and a UID for each action and observation.

    Args:
      action_spec: specs of the actions, nested or not, as in dm_env; None for none.
      observation_spec: specs of the observations.
      reward_spec: the spec, or specs, of the reward.
      discount_spec: the spec, or specs, of the discount; None if the discount is 1, or 0 in a step
        that TERMINATED a sequence.
      default_actions: values, by flat name, for actions that a step omits; names that are not in
        `action_spec` are ignored.

    Attributes:
      specs: the specs as sent, with UIDs.
      action_names: the flat names of the actions.
      observation_names: the names of the observations, then of the reward, then of the discount.
      sends_discount: whether the discount is an observation.
      action_of_row: returns the nested action of one row, given arrays [N, ...] in the order of
        `action_names`, and the index of the row.

    Raises:
      SpecError: two values would have the same name; an observation has the name of the reward or
        the discount; or a spec cannot be sent.
    """

    def __init__(
        self,
        action_spec: Any,
        observation_spec: Any,
        reward_spec: Any,
        discount_spec: Any,
        default_actions: Mapping[str, Any],
    ):
        self._flatten_observation = (
            _flatten_nothing
            if observation_spec is None
            else structures.flattener(observation_spec, "observation")
        )
        self._flatten_reward = structures.flattener(reward_spec, REWARD)
        # One number needs no walk over a structure in each step.
        self._has_single_reward = isinstance(reward_spec, Array)
        self.sends_discount = discount_spec is not None
        self._flatten_discount = structures.flattener(discount_spec, DISCOUNT)
        self.action_names = _names(action_spec, "action")
        self._action_count = len(self.action_names)
        self._nest_action = _nester(action_spec, self.action_names)
        # A dict without levels, the common case, is built from its keys and names directly.
        keys = _flat_keys(action_spec) or ()
        self._action_keys = list(zip(keys, self.action_names, strict=True)) if keys else None
        self.action_of_row = _row_nester(action_spec)
        self._default_actions = default_actions
        observation_names = _names(observation_spec, "observation")
        reward_names = _names(reward_spec, REWARD, prefix=REWARD)
        discount_names = _names(discount_spec, DISCOUNT, prefix=DISCOUNT)
        observations = {
            **_named_specs(observation_names, observation_spec),
            **_named_specs(reward_names, reward_spec),
            **_named_specs(discount_names, discount_spec),
        }
        self.observation_names = [*observation_names, *reward_names, *discount_names]
        self._all_names = tuple(self.observation_names)
        # The index of each value in the result of `values`.
        self._positions = {name: place for place, name in enumerate(self.observation_names)}
        self._no_reward = _stand_ins(reward_spec, 0)
        self._no_discount, self._last_discount = (_stand_ins(discount_spec, n) for n in (1, 0))
        check_taken(observation_names, "observation", _OF_STEPS)
        _check_names(self.action_names, "action")
        _check_names(self.observation_names, "observation")
        self.specs = dm_env_rpc_pb2.ActionObservationSpecs(
            actions=_with_uids(_named_specs(self.action_names, action_spec)),
            observations=_with_uids(observations),
        )

    @classmethod
    def of(cls, environment: dm_env.Environment, default_actions: Mapping[str, Any]) -> FlatSpecs:
        """Return the flat specs of an environment; raise TypeError if a method returns no spec."""
        return cls(*specs_of(environment), default_actions)

    def nested_action(self, actions: Mapping[str, Any]) -> Any:
        """Return the nested action for `dm_env.Environment.step`.

        Args:
          actions: values by flat name.

        Raises:
          RequestError: an action without a default is missing.
        """
        # Defaults are merged only if an action is missing: most steps send all.
        if len(actions) < self._action_count:
            actions = {**self._default_actions, **actions}
        try:
            if self._action_keys is None:
                return self._nest_action(actions)
            nested = {}
            # A loop over prepared pairs: before Python 3.12, a comprehension is a call.
            for key, name in self._action_keys:
                nested[key] = actions[name]
            return nested
        except KeyError:
            missing = [name for name in self.action_names if name not in actions]
            raise RequestError.invalid(
                f"missing action {', '.join(map(repr, missing))}: this environment needs all its "
                f"actions in every step: {', '.join(map(repr, self.action_names))}"
            ) from None

    def flat_observations(
        self, timestep: dm_env.TimeStep, requested: Collection[str]
    ) -> dict[str, Any]:
        """Return the requested values of a time step by name; see `values`."""
        values, positions = self.values(timestep), self._positions
        if requested == self._all_names:
            return dict(zip(requested, values, strict=True))
        # A loop: before Python 3.12, a comprehension is a call.
        found = {}
        for name in requested:
            found[name] = values[positions[name]]
        return found

    def values(self, timestep: dm_env.TimeStep) -> list[Any]:
        """Return the values of a time step, in the order of `observation_names`.

        A missing reward is 0. A missing discount is 1, or 0 in a LAST step, which then counts as
        terminated.

        Raises:
          RuntimeError: the discount has no spec, but does not follow from the states.
        """
        values = self._flatten_observation(timestep.observation)
        reward, discount = timestep.reward, timestep.discount
        if self._has_single_reward and reward is not None:
            values.append(reward)  # The common case, without a call.
        else:
            values += self._no_reward if reward is None else self._flatten_reward(reward)
        if self.sends_discount:
            if discount is not None:
                values += self._flatten_discount(discount)
            else:
                values += self._last_discount if timestep.last() else self._no_discount
        # Nearly every step has discount 1.0, which clients infer.
        elif type(discount) is not float or discount != 1.0:
            _check_default_discount(timestep)
        return values


def _check_default_discount(timestep: dm_env.TimeStep) -> None:
    discount = timestep.discount
    if discount is None or timestep.first() or np.all(np.equal(discount, 1)):
        return  # Clients ignore the discount of a FIRST step.
    if timestep.last() and np.all(np.equal(discount, 0)):
        return
    raise RuntimeError(
        f"the environment's discount is {discount!r} in a {timestep.step_type.name} step, but it "
        "does not override discount_spec(), so the discount is not sent and clients infer 1, or 0 "
        "where a sequence TERMINATED; to send it, override discount_spec() and return a spec, such "
        "as dm_env.specs.Array((), float, 'discount')"
    )


def _flatten_nothing(observation: Any) -> list[Any]:
    """Return an empty list, or raise TypeError if the observation contains values."""
    if observation is None or not structures.leaves(observation):
        return []
    raise TypeError(
        "the environment's observation_spec() returned None, but a TimeStep has the observation "
        f"{described(observation)}; return a spec for this observation, or return None "
        "as the observation"
    )


def _stand_ins(structure: Any, value: int) -> list[Any]:
    """Return substitutes for missing values, such as the reward of a FIRST step."""
    made: list[Any] = []
    for leaf in structures.leaves(structure):
        array = np.full(leaf.shape, value, leaf.dtype)
        # Shared by all steps with a missing value, so it must not change.
        array.flags.writeable = False
        # Most rewards are Python's floats, which need no conversion.
        made.append(float(value) if leaf.shape == () and leaf.dtype == np.float64 else array)
    return made


def _nester(structure: Any, names: list[str]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that builds a structure from a mapping of flat names to values.

    The function raises KeyError if a value is missing.
    """
    if isinstance(structure, Array):
        (single,) = names
        return lambda values: values[single]
    if not names:
        return lambda values: structure
    nest_leaves = structures.nester(structure)
    return lambda values: nest_leaves(iter([values[name] for name in names]))


def _row_nester(structure: Any) -> Callable[[Sequence[Any], int], Any]:
    """Return a function that builds the structure of one row, given columns and its index."""
    if isinstance(structure, Array):
        return lambda columns, row: columns[0][row]
    keys = _flat_keys(structure)
    if keys and len(keys) == 1:  # Before Python 3.12, the comprehension below is a call.
        (single,) = keys
        return lambda columns, row: {single: columns[0][row]}
    if keys:
        return lambda columns, row: {
            key: column[row] for key, column in zip(keys, columns, strict=True)
        }
    if not structures.leaves(structure):
        return lambda columns, row: structure
    nest = structures.nester(structure)
    return lambda columns, row: nest(iter([column[row] for column in columns]))


def _flat_keys(structure: Any) -> list[Any] | None:
    """Return the keys of a structure that is a flat dict, or None for any other structure."""
    if type(structure) is dict and not any(map(structures.is_nested, structure.values())):
        return list(structure)
    return None


def end_state(timestep: dm_env.TimeStep) -> State:
    """Return the state after a LAST step: TERMINATED if all discounts are 0, else INTERRUPTED."""
    ended = not any(np.any(leaf) for leaf in structures.leaves(timestep.discount))
    return State.TERMINATED if ended else State.INTERRUPTED


def check_taken(names: Iterable[str], kind: str, taken: Mapping[str, str]) -> None:
    """Raise SpecError if an environment uses a reserved name.

    Args:
      names: the names of the environment.
      kind: "action" or "observation".
      taken: the reserved names, each with its description in errors: "a name that ...".
    """
    for name in names:
        if name in taken:
            raise SpecError(f"{kind} {name!r} of an environment has {taken[name]}; rename it")


def _check_names(names: Sequence[str], kind: str) -> None:
    """Raise SpecError if two flat names of an environment collide."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SpecError(
                f"two {kind}s of an environment have the flat name {name!r}; rename one of "
                "them, because periods separate levels"
            )
        seen.add(name)
    try:
        nesting.check_unambiguous(seen)
    except SpecError as error:
        raise SpecError(
            f"an environment's {kind}s have invalid names: {error}; rename one"
        ) from None


def _names(structure: Any, single: str, prefix: str = "") -> list[str]:
    """Return the flat name of each leaf, in the order of `structures.leaves`."""
    names = []
    for path, _ in structures.leaves_with_path(structure):
        steps = [*([prefix] if prefix and path else []), *map(str, path)]
        names.append(nesting.SEPARATOR.join(steps) if steps else single)
    return names


def _named_specs(names: list[str], structure: Any) -> dict[str, dm_env_rpc_pb2.TensorSpec]:
    if not names:
        return {}
    named = {}
    for name, spec in zip(names, structures.leaves(structure), strict=True):
        named[name] = specs.named_tensor_spec(spec, name)
    return named


def _with_uids(
    named: Mapping[str, dm_env_rpc_pb2.TensorSpec],
) -> dict[int, dm_env_rpc_pb2.TensorSpec]:
    return dict(enumerate(named.values(), start=1))
