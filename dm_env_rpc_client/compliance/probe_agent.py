"""An agent in a world of the server, which acts validly unless a check says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.facts import Facts
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import Probe
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import lifecycle
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors import nesting, specs
from dm_env_rpc_client.tensors.sampling import sample
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.tensors.spec_manager import SpecManager, TensorField

Actions = Mapping[int, dm_env_rpc_pb2.Tensor]

# The checks that report what any check can come across; see ViolationError.
_STATES = ("states_follow_each_other",)
_NUMBERS_OF_STATES = ("states_are_those_of_the_protocol",)
_VALID_ACTIONS = ("actions_at_their_bounds_are_taken", "what_is_requested_is_returned")
_LAST_STEPS = ("the_last_step_returns_observations",)

_RUNNING_WITHIN = 3
"""The number of valid steps within which a sequence must be running."""


def unknown_uid(uids: Iterable[int]) -> int:
    """Returns a UID that is not among `uids`."""
    return max(uids, default=0) + 1000


class ProbeAgent:
    """A joined connection, with its specs and the state of its sequence.

    Args:
      probe: the connection.
      joined: the answer to its JoinWorld.
      world_name: the joined world.
      options: with the policy for valid actions.
      facts: about the server.

    Attributes:
      probe: the connection.
      world_name: the joined world.
      state: as the answers so far say.
      specs: of the last JoinWorld or Reset.
    """

    def __init__(
        self,
        probe: Probe,
        joined: dm_env_rpc_pb2.JoinWorldResponse,
        world_name: str,
        options: Options,
        facts: Facts,
    ):
        self.world_name = world_name
        self._options = options
        self._facts = facts
        self._random = np.random.default_rng(options.seed)
        self._custom = options.load_policy()
        self.joined(probe, joined)

    def joined(self, probe: Probe, response: dm_env_rpc_pb2.JoinWorldResponse) -> None:
        """Takes the connection on which the world was joined, and the answer."""
        self.probe = probe
        self.state = State.JOINED
        self._timestep = dm_env.restart({})
        self.adopt(response.specs)

    def adopt(self, new: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
        """Takes the specs of a JoinWorldResponse or ResetResponse."""
        self.specs = new
        self._managers: dict[str, SpecManager] = {}

    @property
    def actions(self) -> dict[int, TensorField]:
        """The actions by UID; NotOfferedError if their specs are invalid."""
        return self._fields("action", self.specs.actions)

    @property
    def observations(self) -> dict[int, TensorField]:
        """The observations by UID; NotOfferedError if their specs are invalid."""
        return self._fields("observation", self.specs.observations)

    def valid_actions(self) -> dict[int, dm_env_rpc_pb2.Tensor]:
        """Returns a value for every action that the policy can choose.

        Actions that are messages have types of the environment, so only a MODULE:FUNCTION
        policy can choose them.
        """
        fields = self.actions
        if self._custom is not None:
            by_name = {field.name: field for field in fields.values()}
            nested = nesting.unflatten_dict(
                {name: specs.tensor_spec_to_dm_env_spec(f.spec) for name, f in by_name.items()},
                nesting.SEPARATOR,
            )
            chosen = self._custom(self._timestep, nested)
            flat = nesting.flatten_dict(chosen, nesting.SEPARATOR, strict=False)
            return self._managers["action"].pack(flat)
        return {
            uid: self._valid_action(field)
            for uid, field in fields.items()
            if field.codec.data_type != dm_env_rpc_pb2.PROTO
        }

    def _valid_action(self, field: TensorField) -> dm_env_rpc_pb2.Tensor:
        try:
            spec = specs.tensor_spec_to_dm_env_spec(field.spec)
            is_constant = self._options.policy == "constant"
            value = spec.generate_value() if is_constant else sample(spec, self._random)
            return field.pack(value)
        except ValueError as error:
            raise NotOfferedError(f"no value conforms to the specs: {error}") from None

    def request(
        self, actions: Actions | None = None, requested: Iterable[int] = ()
    ) -> dm_env_rpc_pb2.StepRequest:
        """Returns a StepRequest; if no actions are given, with valid ones in a sequence only."""
        chosen = actions
        if chosen is None:
            chosen = self.valid_actions() if self.state is State.RUNNING else {}
        return dm_env_rpc_pb2.StepRequest(actions=chosen, requested_observations=requested)

    def step(
        self,
        actions: Actions | None = None,
        requested: Iterable[int] = (),
        expected: str = "a StepResponse, because the step is valid",
    ) -> dm_env_rpc_pb2.StepResponse:
        """Takes a valid step; ViolationError if it is refused or its state cannot follow."""
        concerns: tuple[str, ...] = ()
        if actions is None:  # Otherwise the check is about the actions.
            concerns = _VALID_ACTIONS if self.state is State.RUNNING else _STATES
        return self.took(self.probe.accept(self.request(actions, requested), expected, concerns))

    def try_step(self, actions: Actions, refusal: str) -> None:
        """Takes a step that may be refused; NotOfferedError with `refusal` if it is."""
        answer = self.probe.ask(self.request(actions))
        if not isinstance(answer, dm_env_rpc_pb2.StepResponse):
            raise NotOfferedError(f"{refusal}: {answer.message}")
        self.took(answer)

    def observe(self, requested: Iterable[int] | None = None) -> dm_env_rpc_pb2.StepResponse:
        """Takes a valid step for all observations, or for some, and checks what it returns."""
        uids = self.specs.observations if requested is None else requested
        response = self.step(requested=uids)
        self.check_observations(response, uids)
        return response

    def check_observations(
        self, response: dm_env_rpc_pb2.StepResponse, requested: Iterable[int]
    ) -> None:
        """Raises ViolationError if a response has others than the requested observations."""
        if set(response.observations) != set(requested):
            raise self.probe.violation(
                f"observations {sorted(set(requested))}, no more and no less",
                response,
                concerns=() if self.state is State.RUNNING else _LAST_STEPS,
            )

    def took(self, response: dm_env_rpc_pb2.StepResponse) -> dm_env_rpc_pb2.StepResponse:
        """Records the answer to a step; ViolationError if its state cannot follow."""
        concerns = _NUMBERS_OF_STATES
        try:
            after = State.of_response(response.state)
            concerns = _STATES
            lifecycle.advance(self.state, "step", after)
        except ProtocolError as error:
            expected = f"a state that can follow {self.state.name}: {error}"
            raise self.probe.violation(expected, response, concerns=concerns) from None
        if self._custom is not None:
            self._timestep = dm_env.TimeStep(
                lifecycle.step_type(self.state, after), None, None, self._unpacked(response)
            )
        self.state = after
        return response

    def run(self) -> None:
        """Steps until a sequence is running; does nothing if one is."""
        for _ in range(_RUNNING_WITHIN):
            if self.state is State.RUNNING:
                return
            self.step(requested=self.observations if self._custom else ())

    def run_to_the_end(self) -> bool:
        """Steps until the sequence ends; returns whether it ended within `max_steps`."""
        self.run()
        for _ in range(self._options.max_steps):
            self.step(requested=self.observations if self._custom else ())
            if self.state is not State.RUNNING:
                return True
        return False

    def refuse_step(
        self, expected: str, actions: Actions | None = None, requested: Iterable[int] = ()
    ) -> None:
        """Takes a step that must be refused; ViolationError if it is not."""
        self.probe.refuse(self.request(actions, requested), expected)

    def nonsense(self) -> Actions:
        """Returns an action with an unknown UID, which is only valid if actions are ignored."""
        uid = unknown_uid(self.specs.actions)
        return {uid: dm_env_rpc_pb2.Tensor(floats=dm_env_rpc_pb2.Tensor.FloatArray(array=[0.0]))}

    def first_actions(self) -> Actions:
        """Returns actions for a first step, which tell it from others.

        They are unknown, which only the first step of a sequence ignores; or none if the server
        does not ignore them there either.
        """
        return self.nonsense() if self._facts.ignores_first_actions else {}

    def begin(self, expected: str) -> None:
        """Steps with `first_actions`; ViolationError if that does not begin a sequence."""
        request = self.request(self.first_actions())
        response = self.took(self.probe.accept(request, expected, _STATES))
        if self.state is not State.RUNNING:
            raise self.probe.violation(f"{expected}, in state RUNNING", response)

    def check_is_running(self, why: str) -> None:
        """ViolationError if no sequence is running: then an unknown action would be ignored.

        Nothing is found out about a server that takes unknown actions in a sequence, too.
        """
        if not self._facts.refuses_unknown_actions:
            return
        self.refuse_step(f"an error for an unknown action, because {why}", self.nonsense())

    def reset(self, settings: Mapping[str, Any] | None = None) -> None:
        """Resets the agent, with the settings of the options or others, and adopts the specs."""
        packed = pack_settings(self._options.reset_settings if settings is None else settings)
        request = dm_env_rpc_pb2.ResetRequest(settings=packed)
        self.adopt(self.probe.accept(request, "a ResetResponse").specs)
        self.was_reset()

    def was_reset(self) -> None:
        """Records that the agent or its world was reset."""
        if self.state is State.RUNNING:
            self.state = State.INTERRUPTED

    def reset_if_offered(self) -> None:
        """Resets the agent if the server takes a Reset."""
        if self._facts.takes_resets:
            self.reset()

    def leave(self, expected: str = "a LeaveWorldResponse") -> None:
        """Leaves the world."""
        self.probe.accept(dm_env_rpc_pb2.LeaveWorldRequest(), expected)
        self.state = State.NOT_JOINED

    def _unpacked(self, response: dm_env_rpc_pb2.StepResponse) -> dict[str, Any]:
        fields = self.observations
        flat = {
            fields[uid].name: fields[uid].unpack(tensor)
            for uid, tensor in response.observations.items()
            if uid in fields
        }
        return nesting.unflatten_dict(flat, nesting.SEPARATOR)

    def _fields(
        self, kind: str, tensor_specs: Mapping[int, dm_env_rpc_pb2.TensorSpec]
    ) -> dict[int, TensorField]:
        if kind not in self._managers:
            try:
                self._managers[kind] = SpecManager(tensor_specs, kind)
            except SpecError as error:
                # The checks of specs report it.
                raise NotOfferedError(f"the specs are invalid: {error}") from None
        manager = self._managers[kind]
        return {manager.name_to_uid(name): manager.field(name) for name in manager.names()}


def step_together(agents: Sequence[ProbeAgent], expected: str) -> None:
    """Takes a step of each agent; all are sent first, because the world may wait for all."""
    for agent in agents:
        agent.probe.send(agent.request())
    for agent in agents:
        agent.took(agent.probe.accepted("step", expected))
