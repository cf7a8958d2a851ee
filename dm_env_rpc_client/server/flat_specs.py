"""Nested dm_env specs and values to flat names, and back.

The levels of a name are joined by periods; an index into a list or tuple is a level like any
other. A structure that is a single array has the name "action" or "observation". Reward and
discount are observations of their own ("Reward and discount" in the protocol overview).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import dm_env
import numpy as np
import tree
from dm_env.specs import Array

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.tensors import nesting, specs

__all__ = ["FlatSpecs", "end_state"]


class FlatSpecs:
    """The specs of one agent by flat names, with UIDs.

    Args:
      action_spec: specs of the actions, nested or not, as in dm_env; None for none.
      observation_spec: specs of the observations.
      reward_spec: the spec, or specs, of the reward.
      discount_spec: the spec, or specs, of the discount.
      default_actions: values, by flat name, for actions that a step leaves out; others than those
        of `action_spec` are ignored.

    Raises:
      SpecError: two values would have the same name, or a spec cannot be sent.
    """

    def __init__(
        self,
        action_spec: Any,
        observation_spec: Any,
        reward_spec: Any,
        discount_spec: Any,
        default_actions: Mapping[str, Any],
    ):
        self._action_spec = action_spec
        self._observation_spec = observation_spec
        self._reward_spec = reward_spec
        self._discount_spec = discount_spec
        self._flatten_observation = _flattener(observation_spec)
        self._flatten_reward = _flattener(reward_spec)
        self._flatten_discount = _flattener(discount_spec)
        self._nest_action = _nester(action_spec)
        self.action_names = _names(self._action_spec, "action")
        self._default_actions = default_actions
        self._observation_names = _names(self._observation_spec, "observation")
        self._reward_names = _names(self._reward_spec, REWARD, prefix=REWARD)
        self._discount_names = _names(self._discount_spec, DISCOUNT, prefix=DISCOUNT)
        observations = {
            **_named_specs(self._observation_names, self._observation_spec),
            **_named_specs(self._reward_names, self._reward_spec),
            **_named_specs(self._discount_names, self._discount_spec),
        }
        taken = set(self._observation_names) & {*self._reward_names, *self._discount_names}
        if taken:
            raise SpecError(
                f"observation {min(taken)!r} has the name under which the environment's "
                "reward or discount is sent; rename it"
            )
        self.specs = dm_env_rpc_pb2.ActionObservationSpecs(
            actions=_with_uids(_named_specs(self.action_names, self._action_spec)),
            observations=_with_uids(observations),
        )

    @classmethod
    def of(cls, environment: dm_env.Environment, default_actions: Mapping[str, Any]) -> FlatSpecs:
        """Returns the flat specs of an environment."""
        return cls(
            environment.action_spec(),
            environment.observation_spec(),
            environment.reward_spec(),
            environment.discount_spec(),
            default_actions,
        )

    def nested_action(self, actions: Mapping[str, Any]) -> Any:
        """Returns the nested action for `dm_env.Environment.step`.

        Args:
          actions: values by flat name.

        Raises:
          RequestError: one is missing, and there is no default for it.
        """
        if len(actions) < len(self.action_names):
            actions = {**self._default_actions, **actions}
        try:
            flat = [actions[name] for name in self.action_names]
        except KeyError:
            missing = [name for name in self.action_names if name not in actions]
            raise RequestError.invalid(
                f"missing action {', '.join(map(repr, missing))}: this environment needs all its "
                f"actions in every step: {', '.join(map(repr, self.action_names))}"
            ) from None
        return self._nest_action(flat)

    def flat_observations(
        self, timestep: dm_env.TimeStep, requested: Collection[str]
    ) -> dict[str, Any]:
        """Returns the requested values of a time step, by name.

        A FIRST step has no reward and no discount. If they are requested, the reward is 0
        and the discount 1.
        """
        values: dict[str, Any] = dict(
            zip(
                self._observation_names,
                self._flatten_observation(timestep.observation),
                strict=True,
            )
        )
        for names, spec, flatten, value, stand_in in (
            (self._reward_names, self._reward_spec, self._flatten_reward, timestep.reward, 0),
            (
                self._discount_names,
                self._discount_spec,
                self._flatten_discount,
                timestep.discount,
                1,
            ),
        ):
            if value is None:
                leaves = [np.full(leaf.shape, stand_in, leaf.dtype) for leaf in tree.flatten(spec)]
            else:
                leaves = flatten(value)
            values.update(zip(names, leaves, strict=True))
        return {name: values[name] for name in requested}


def _flattener(structure: Any) -> Callable[[Any], list[Any]]:
    """Returns what flattens values of a structure: without dm-tree for a leaf or a flat dict."""
    if isinstance(structure, Array):
        return lambda value: [value]
    if type(structure) is dict and all(isinstance(leaf, Array) for leaf in structure.values()):
        keys = [path[0] for path, _ in tree.flatten_with_path(structure)]

        def flatten(value: Any) -> list[Any]:
            if type(value) is dict and len(value) == len(keys):
                try:
                    return [value[key] for key in keys]
                except KeyError:
                    pass  # dm-tree says what is wrong.
            return tree.flatten_up_to(structure, value)  # type: ignore[no-any-return]

        return flatten
    return lambda value: tree.flatten_up_to(structure, value)


def _nester(structure: Any) -> Callable[[list[Any]], Any]:
    """Returns what puts flat values into a structure, the inverse of `_flattener`."""
    if isinstance(structure, Array):
        return lambda flat: flat[0]
    if structure is None or not tree.flatten(structure):
        return lambda flat: structure
    if type(structure) is dict and all(isinstance(leaf, Array) for leaf in structure.values()):
        keys = [path[0] for path, _ in tree.flatten_with_path(structure)]
        return lambda flat: dict(zip(keys, flat, strict=True))
    return lambda flat: tree.unflatten_as(structure, flat)


def end_state(timestep: dm_env.TimeStep) -> State:
    """Returns the state after a LAST step: TERMINATED if all discounts are 0."""
    ended = not any(np.any(leaf) for leaf in tree.flatten(timestep.discount))
    return State.TERMINATED if ended else State.INTERRUPTED


def _names(structure: Any, single: str, prefix: str = "") -> list[str]:
    """The flat name of each leaf, in the order in which tree flattens them."""
    if structure is None:
        return []
    names = []
    for path, _ in tree.flatten_with_path(structure):
        steps = [str(step) for step in path]
        for step in steps:
            if nesting.SEPARATOR in step:
                raise SpecError(
                    f"key {step!r} contains {nesting.SEPARATOR!r}, which separates levels"
                )
        if prefix and steps:
            steps.insert(0, prefix)
        names.append(nesting.SEPARATOR.join(steps) or single)
    return names


def _named_specs(names: list[str], structure: Any) -> dict[str, dm_env_rpc_pb2.TensorSpec]:
    if not names:
        return {}
    named = {}
    for name, spec in zip(names, tree.flatten(structure), strict=True):
        named[name] = specs.dm_env_spec_to_tensor_spec(spec)
        named[name].name = name
    return named


def _with_uids(
    named: Mapping[str, dm_env_rpc_pb2.TensorSpec],
) -> dict[int, dm_env_rpc_pb2.TensorSpec]:
    return dict(enumerate(named.values(), start=1))
