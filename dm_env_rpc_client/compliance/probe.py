"""A raw stream to the server under test, and an agent in one of its worlds."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
from google.protobuf import message as protobuf_message
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Facts, NotOfferedError, ViolationError
from dm_env_rpc_client.errors import DmEnvRpcClientError, ProtocolError, SpecError
from dm_env_rpc_client.protocol import envelopes, lifecycle
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors import nesting, specs
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.tensors.spec_manager import SpecManager, TensorField
from dm_env_rpc_client.tensors.specs import sample
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.opening import open_stream

END = "the end of the stream"
"""The description of a stream that ends without an answer; the error message follows it."""

_SHOWN = 300
"""The maximum length of a printed message, in characters."""

_LAST = 6
"""The maximum number of printed requests."""

_CLOSE_SECONDS = 0.5

# A server need only implement JoinWorld, Step and LeaveWorld.
_OPTIONAL = {"create_world", "destroy_world", "reset", "reset_world", "extension"}

# In the 1.0 line, properties are fields of the envelope; today's envelope has none for them.
_OF_LINE_1_0 = {field.name for field in line_1_0_pb2.PropertyRequest.DESCRIPTOR.fields}

_LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()

# Checks that report violations which any check may encounter; see ViolationError.
_JOINS = ("a_world_can_be_joined",)
_KINDS = ("answers_are_of_the_requests_kind",)


def describe(message: protobuf_message.Message) -> str:
    """Return a message as one line of text, truncated if it is long."""
    text = text_format.MessageToString(message, as_one_line=True)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}... ({message.ByteSize()} bytes)"
    name = str(message.DESCRIPTOR.name)
    return f"{name} {{ {text} }}" if text else name


def _described(request: envelopes.Request | None) -> str:
    return "an EnvironmentRequest without a payload" if request is None else describe(request)


class Probe:
    """A stream that records sent messages and counts pending requests.

    Args:
      address: the server.
      timeout: seconds to wait for the connection and for each answer.
      security: the arguments of `connect` for TLS, tokens and unencrypted connections.

    Attributes:
      is_open: True until `close` or `abort` is called.
      was_answered: whether an answer was received.
      was_refused: whether a request got an error, after which the server may close the stream.
      pending: the number of pending requests.
      created: the names of the worlds created on this stream, including unexpected ones.

    Raises:
      DmEnvRpcClientError: the connection failed.
    """

    def __init__(self, address: str, timeout: float, security: Mapping[str, Any]):
        self._stream = open_stream(Endpoint(address, transport="grpc", **security), timeout)
        self._timeout = timeout
        self._sent: collections.deque[envelopes.Request | None] = collections.deque(maxlen=_LAST)
        self.is_open = True
        self.was_answered = False
        self.was_refused = False
        self.pending = 0
        self.created: list[str] = []

    def send(self, request: envelopes.Request | None) -> str:
        """Send a request without waiting for the answer.

        If `request` is None, an envelope without a payload is sent.

        Returns:
          The payload field of the request.
        """
        self.pending += 1
        self._sent.append(request)
        if request is None:
            self._stream.write(dm_env_rpc_pb2.EnvironmentRequest().SerializeToString())
            return ""
        encoded = envelopes.encode_request(request)
        self._stream.write(encoded.message)
        return encoded.field

    def receive(self, expected: str, field: str = "") -> Any:
        """Wait for the next answer.

        Args:
          expected: the answer that the clause demands, for the ViolationError.
          field: the payload field of the request.

        Returns:
          An EnvironmentResponse, or a PropertyResponse for a property request of protocol 1.0.

        Raises:
          ViolationError: no answer came in time, the stream ended, or the answer was not an
            EnvironmentResponse.
        """
        try:
            message = self._stream.read(self._timeout)
        except DmEnvRpcClientError as error:
            received = f"{END}: {error}"
            raise self.violation(expected, received, is_unanswered=True) from error
        if message is None:
            received = f"no answer within {self._timeout} s"
            raise self.violation(expected, received, is_unanswered=True)
        self.pending -= 1
        self.was_answered = True
        envelope: Any = dm_env_rpc_pb2.EnvironmentResponse
        if field in _OF_LINE_1_0:
            envelope = line_1_0_pb2.PropertyResponse
        try:
            return envelope.FromString(bytes(message))
        except (protobuf_message.DecodeError, ValueError) as error:
            received = f"not an EnvironmentResponse: {error}"
            raise self.violation(expected, received, concerns=_JOINS) from error

    def has_answer(self, seconds: float) -> bool:
        """Return whether an answer, or the end of the stream, arrives within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._stream.has_unread():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def answer(self, field: str, expected: str) -> Any:
        """Wait for the answer to a request: the response named `field`, or an error.

        Returns:
          The response message, or the error Status.

        Raises:
          ViolationError: the answer is neither of these, or no answer came.
        """
        response = self.receive(expected, field)
        answered = response.WhichOneof("payload")
        if answered not in (field, "error"):
            found = describe(response) if answered else "an EnvironmentResponse without a payload"
            raise self.violation(f"{expected}: {_named(field)} or an error", found, concerns=_KINDS)
        self.was_refused |= answered == "error"
        payload = getattr(response, answered)
        if answered == "create_world":
            self.created.append(payload.world_name)
        return payload

    def is_answered(self) -> bool:
        """Return whether the server answers a LeaveWorld, which is allowed in every state.

        An error also counts as an answer, and sets `was_refused`.
        """
        self.send(_LEAVE)
        try:
            response = self.receive("an answer")
        except ViolationError:
            return False
        self.was_refused |= response.WhichOneof("payload") == "error"
        return True

    def ask(self, request: envelopes.Request, expected: str = "an answer") -> Any:
        """Send a request and return its response message or an error Status."""
        return self.answer(self.send(request), expected)

    def accepted(self, field: str, expected: str, concerns: tuple[str, ...] = ()) -> Any:
        """Wait for the answer to a request that the server has no reason to refuse.

        Args:
          field: the payload field of the request.
          expected: the answer that the clause demands.
          concerns: the names of the checks that test whether the server refuses the request.

        Raises:
          NotOfferedError: the request is optional, and the server does not implement it.
          ViolationError: the answer is an error or invalid, or no answer came.
        """
        answer = self.answer(field, expected)
        if isinstance(answer, status_pb2.Status):
            if field in _OPTIONAL and answer.code == code_pb2.UNIMPLEMENTED:
                raise NotOfferedError(f"the server does not implement {field}: {answer.message}")
            raise self.violation(expected, answer, concerns=concerns)
        return answer

    def accept(
        self, request: envelopes.Request, expected: str, concerns: tuple[str, ...] = ()
    ) -> Any:
        """Send a valid request and return its response.

        The arguments and errors are the same as for `accepted`.
        """
        return self.accepted(self.send(request), expected, concerns)

    def refused(
        self, field: str, expected: str, concerns: tuple[str, ...] = ()
    ) -> status_pb2.Status:
        """Wait for the error that the server must return for a request.

        The arguments are the same as for `accepted`.

        Raises:
          ViolationError: the answer is not an error, or no answer came.
        """
        answer = self.answer(field, expected)
        if not isinstance(answer, status_pb2.Status):
            raise self.violation(expected, answer, concerns=concerns)
        return answer

    def refuse(
        self, request: envelopes.Request, expected: str, concerns: tuple[str, ...] = ()
    ) -> status_pb2.Status:
        """Send a request that the server must refuse, and return the error."""
        return self.refused(self.send(request), expected, concerns)

    def violation(
        self,
        expected: str,
        received: str | protobuf_message.Message,
        is_unanswered: bool = False,
        concerns: tuple[str, ...] = (),
    ) -> ViolationError:
        """Return a ViolationError with the last requests."""
        if isinstance(received, protobuf_message.Message):
            received = describe(received)
        shown = max(1, self.pending + (not is_unanswered))
        sent = "; ".join(map(_described, list(self._sent)[-shown:]))
        return ViolationError(expected, sent, received, is_unanswered, concerns)

    def hurry(self, timeout: float) -> None:
        """Limit the wait for each further answer to `timeout` seconds."""
        self._timeout = min(self._timeout, timeout)

    def abort(self) -> None:
        """End the stream immediately, even if another thread is waiting for an answer."""
        self.is_open = False
        self._stream.abort()

    def close(self) -> None:
        """Close the stream.

        A second call does nothing.
        """
        if self.is_open:
            self.is_open = False
            self._stream.close(_CLOSE_SECONDS)


def _named(field: str) -> str:
    camel = "".join(part.capitalize() for part in field.split("_"))
    return "an extension" if field == "extension" else f"a {camel}Response"


Actions = Mapping[int, dm_env_rpc_pb2.Tensor]

# Checks that report violations which any check may encounter; see ViolationError.
_STATES: tuple[str, ...] = ("states_follow_each_other",)
_RESETS = ("a_reset_ends_the_sequence", *_STATES)
_NUMBERS_OF_STATES: tuple[str, ...] = ("states_are_those_of_the_protocol",)
_VALID_ACTIONS = ("actions_at_their_bounds_are_taken", "what_is_requested_is_returned")
_LAST_STEPS = ("the_last_step_returns_observations",)

_RUNNING_WITHIN = 3
"""The number of valid steps after which a sequence must be running."""


def unknown_uid(uids: Iterable[int]) -> int:
    """Return a UID that is not among `uids`."""
    return max(uids, default=0) + 1000


class ProbeAgent:
    """A connection that is joined to a world, with its specs and the state of its sequence.

    Args:
      probe: the connection.
      joined: the answer to the JoinWorld of this connection.
      world_name: the joined world.
      options: the options, including the policy for valid actions.
      facts: the facts about the server.

    Attributes:
      probe: the connection.
      world_name: the joined world.
      state: the state of its sequence, according to the answers so far.
      specs: the specs of the last JoinWorld or Reset.
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
        """Record that the world was joined on `probe`, and adopt the specs in `response`."""
        self.probe = probe
        self.state = State.JOINED
        # The checks of the request that ended the last sequence.
        self._ended_by = _STATES
        self._timestep = dm_env.restart({})
        self.adopt(response.specs)

    def adopt(self, new: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
        """Adopt the new specs from a JoinWorldResponse or ResetResponse."""
        self.specs = new
        self._managers: dict[str, SpecManager] = {}

    @property
    def actions(self) -> dict[int, TensorField]:
        """The actions by UID.

        Raises NotOfferedError if the specs are invalid.
        """
        return self._fields("action", self.specs.actions)

    @property
    def observations(self) -> dict[int, TensorField]:
        """The observations by UID.

        Raises NotOfferedError if the specs are invalid.
        """
        return self._fields("observation", self.specs.observations)

    def valid_actions(self) -> dict[int, dm_env_rpc_pb2.Tensor]:
        """Return a value for each action for which the policy can choose one.

        Only a MODULE:FUNCTION policy can choose messages, because their types depend on the
        environment.
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
        """Return a StepRequest; by default, it has valid actions if a sequence is running."""
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
        """Take a valid step, or raise ViolationError if it is refused or returns a wrong state."""
        concerns: tuple[str, ...] = ()
        if actions is None:  # Given actions are the subject of the check itself.
            concerns = _VALID_ACTIONS if self.state is State.RUNNING else self._ended_by
        return self.took(self.probe.accept(self.request(actions, requested), expected, concerns))

    def try_step(self, actions: Actions, refusal: str) -> None:
        """Take a step that the server is allowed to refuse; raise NotOfferedError if it does."""
        answer = self.probe.ask(self.request(actions))
        if not isinstance(answer, dm_env_rpc_pb2.StepResponse):
            raise NotOfferedError(f"{refusal}: {answer.message}")
        self.took(answer)

    def observe(self, requested: Iterable[int] | None = None) -> dm_env_rpc_pb2.StepResponse:
        """Take a valid step, and check that it returns exactly the requested observations.

        By default, all observations are requested.
        """
        uids = self.specs.observations if requested is None else requested
        response = self.step(requested=uids)
        self.check_observations(response, uids)
        return response

    def check_observations(
        self, response: dm_env_rpc_pb2.StepResponse, requested: Iterable[int]
    ) -> None:
        """Raise ViolationError unless a response has exactly the requested observations."""
        if set(response.observations) != set(requested):
            raise self.probe.violation(
                f"exactly the observations {sorted(set(requested))}",
                response,
                concerns=() if self.state is State.RUNNING else _LAST_STEPS,
            )

    def took(self, response: dm_env_rpc_pb2.StepResponse) -> dm_env_rpc_pb2.StepResponse:
        """Record the answer to a step, or raise ViolationError if the new state is impossible."""
        concerns = _NUMBERS_OF_STATES
        try:
            after = State.of_response(response.state)
            concerns = self._ended_by
            lifecycle.advance(self.state, "step", after)
        except ProtocolError as error:
            expected = f"a state that can follow {self.state.name}: {error}"
            raise self.probe.violation(expected, response, concerns=concerns) from None
        if self._custom is not None:
            self._timestep = dm_env.TimeStep(
                lifecycle.step_type(self.state, after), None, None, self._unpacked(response)
            )
        self.state = after
        self._ended_by = _STATES
        return response

    def run(self) -> None:
        """Step until a sequence is running, or do nothing if a sequence is already running."""
        for _ in range(_RUNNING_WITHIN):
            if self.state is State.RUNNING:
                return
            self.step(requested=self.observations if self._custom else ())

    def run_to_the_end(self) -> bool:
        """Step until the sequence ends, and return whether it ended within `max_steps`."""
        self.run()
        for _ in range(self._options.max_steps):
            self.step(requested=self.observations if self._custom else ())
            if self.state is not State.RUNNING:
                return True
        return False

    def refuse_step(
        self, expected: str, actions: Actions | None = None, requested: Iterable[int] = ()
    ) -> None:
        """Take a step that must be refused, or raise ViolationError if the server accepts it."""
        self.probe.refuse(self.request(actions, requested), expected)

    def nonsense(self) -> Actions:
        """Return an action with an unknown UID, which is valid only where actions are ignored."""
        uid = unknown_uid(self.specs.actions)
        return {uid: dm_env_rpc_pb2.Tensor(floats=dm_env_rpc_pb2.Tensor.FloatArray(array=[0.0]))}

    def first_actions(self) -> Actions:
        """Return actions that distinguish a first step from others.

        The result contains an unknown action, which only the first step of a sequence ignores. The
        result is empty if the server does not ignore unknown actions in a first step either.
        """
        return self.nonsense() if self._facts.ignores_first_actions else {}

    def begin(self, expected: str) -> None:
        """Step with `first_actions`, or raise ViolationError if this does not begin a sequence."""
        request = self.request(self.first_actions())
        response = self.took(self.probe.accept(request, expected, self._ended_by))
        if self.state is not State.RUNNING:
            raise self.probe.violation(f"{expected}, in state RUNNING", response)

    def check_is_running(self, why: str) -> None:
        """Raise ViolationError unless an unknown action is refused, as is required in a sequence.

        Servers that accept unknown actions within a sequence are not checked.
        """
        if not self._facts.refuses_unknown_actions:
            return
        self.refuse_step(f"an error for an unknown action, because {why}", self.nonsense())

    def reset(self, settings: Mapping[str, Any] | None = None) -> None:
        """Reset the agent, by default with the settings in the options, and adopt the new specs."""
        packed = pack_settings(self._options.reset_settings if settings is None else settings)
        request = dm_env_rpc_pb2.ResetRequest(settings=packed)
        self.adopt(self.probe.accept(request, "a ResetResponse").specs)
        self.was_reset()

    def was_reset(self) -> None:
        """Record that the agent or its world was reset."""
        if self.state is State.RUNNING:
            self.state = State.INTERRUPTED
            self._ended_by = _RESETS

    def reset_if_offered(self) -> None:
        """Reset the agent if the server supports Reset."""
        if self._facts.takes_resets:
            self.reset()

    def leave(self, expected: str = "a LeaveWorldResponse") -> None:
        """Leave the world."""
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
    """Step all agents at once, because the world might wait until all of them send a request."""
    for agent in agents:
        agent.probe.send(agent.request())
    for agent in agents:
        agent.took(agent.probe.accepted("step", expected))
