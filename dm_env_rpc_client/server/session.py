"""The server's side of one stream, which answers one request at a time.

This module does no I/O. Every request gets exactly one answer, which is either the payload of the
same name or an error Status. A request that fails changes nothing (see "Errors" in the protocol
overview).

Steps are decoded and encoded without protobuf messages (`_step_fast`). All other requests, and
unusual steps, are parsed within the limits and passed to `handle`. The thread that owns a world
answers the requests of the world's streams. If a request might have to wait, that thread raises
ElsewhereError before the request has any effect, and a thread that owns no world then executes
the request.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import lifecycle
from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.server_step_codec import ServerStepCodec, StepAsked
from dm_env_rpc_client.server import waiting
from dm_env_rpc_client.server.activity import STEPS
from dm_env_rpc_client.server.errors import (
    RequestError,
    environment_error,
    in_request,
    refusal_of,
)
from dm_env_rpc_client.server.host import WAITING_FOR, Host
from dm_env_rpc_client.server.waiting import Caller, CallerGoneError
from dm_env_rpc_client.server.worlds.making import ENVIRONMENT
from dm_env_rpc_client.server.worlds.world import Agent
from dm_env_rpc_client.system import owner_threads
from dm_env_rpc_client.system.owner_threads import ElsewhereError, Owner, OwnerGoneError
from dm_env_rpc_client.tensors import bounded_parsing, codecs, packing
from dm_env_rpc_client.tensors.memory_limits import Budget, described, sendable
from dm_env_rpc_client.tensors.spec_manager import SpecManager
from dm_env_rpc_client.transports.net.addresses import is_loopback
from dm_env_rpc_client.transports.server_streams import Parts, Peer, ServerStream, StreamStatusError

_log = logging.getLogger("dm_env_rpc_client.server")


_RUNNING = State.RUNNING
"""A constant that is faster to look up than an enum member; see `protocol/lifecycle.py`."""


class Session(ServerStream):
    """The session of one stream, as a `ServerStream`.

    Attributes:
      may_wait: whether the agent's steps may wait for steps of other agents.

    Args:
      host: the worlds, and the state shared by all sessions.
      peer: the client.
      has_connection: whether this process has the connection, and counts it.
    """

    def __init__(self, host: Host, peer: Peer, has_connection: bool = True):
        self._host = host
        self._worlds = host.worlds
        self._limits = host.options.limits
        self._counts = host.activity.counts
        self._peer = peer.address
        self._has_connection = has_connection
        if has_connection:
            host.activity.opened(self._peer)
        self._caller = Caller()
        self.may_wait = False
        self.owner: Owner | None = None
        self._lifecycle = lifecycle.Lifecycle()
        self._agent: Agent | None = None
        self._codec: ServerStepCodec | None = None
        self._world_name = ""
        self._had_world = False
        self.idle_since: float | None = time.monotonic()

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request, or end the stream if the request cannot be parsed."""
        answer = self.answer_in_parts(message)
        return answer.joined() if isinstance(answer, Parts) else answer

    def answer_in_parts(self, message: bytes) -> bytes | Parts:
        codec = self._codec
        if codec is not None:
            # Most requests of discrete actions repeat: the same bytes mean the same step.
            asked = codec.known.get(message) or codec.decode(message)
            if asked is not None:
                waiting.local.caller = self._caller  # `with self._caller`, inlined.
                try:
                    return self._step_fast(codec, asked)
                finally:
                    waiting.local.caller = None
        try:
            request = bounded_parsing.parse(
                dm_env_rpc_pb2.EnvironmentRequest, message, Budget(self._limits), "the request"
            )
        except SpecError as error:
            refusal = RequestError(code_pb2.RESOURCE_EXHAUSTED, str(error))
            return self._error_response("large", refusal).SerializeToString()
        except DECODE_ERRORS as error:
            raise StreamStatusError(
                "INVALID_ARGUMENT", f"the message is not an EnvironmentRequest: {error}"
            ) from error
        # A thread that owns worlds must not wait; see `system/owner_threads.py`.
        if owner_threads.current() is not None:
            self._require_thread(request)
        with self._caller:
            return self.handle(request).SerializeToString()

    def _require_thread(self, request: dm_env_rpc_pb2.EnvironmentRequest) -> None:
        """Before a request has any effect, check that this thread is allowed to execute it.

        Raises:
          ElsewhereError: the request may have to wait, or is about a world of another owner.
        """
        field = request.WhichOneof("payload")
        if field == "create_world":
            settings = request.create_world.settings
            chosen = {ENVIRONMENT: settings[ENVIRONMENT]} if ENVIRONMENT in settings else {}
            # Any thread can answer an invalid request; `handle` reports the error.
            with contextlib.suppress(RequestError):
                self._worlds.require_thread_to_create(self._unpack_settings(chosen))
        elif field == "join_world":
            self._worlds.require_thread_of(self._to_join(request.join_world))
        elif field == "destroy_world":
            self._worlds.require_thread_of(request.destroy_world.world_name)
        elif field == "reset_world" or (
            # The property is a game's, and games belong to other threads.
            field == "extension" and WAITING_FOR.encode() in request.extension.value
        ):
            owner_threads.require_no_owner()

    def _step_fast(self, codec: ServerStepCodec, asked: StepAsked) -> bytes | Parts:
        """Execute a step without protobuf messages, but otherwise like `_step`.

        There is a codec while an agent is joined, and then a step is always allowed.
        """
        counts = self._counts
        with counts.lock:  # `Counts.add`, inlined.
            counts.numbers[STEPS] += 1
        try:
            actions = asked.actions if self._lifecycle.state is _RUNNING else None
            agent = self._agent or self._joined_agent()
            state, observations = agent.step(actions, asked.requested)
            try:
                # Only the owner's thread changes the arrays of an owned world, and it is this one.
                parts = None if self.owner is None else Parts
                answer: bytes | Parts = codec.encode(state, observations, parts)
            except SpecError as error:
                raise environment_error(error) from error
            followed = self._lifecycle
            if state is followed.state is _RUNNING:
                followed.previous = _RUNNING  # `stepped`, inlined for most steps.
            else:
                followed.stepped(state)
        except CallerGoneError as error:
            raise StreamStatusError("CANCELLED", "the client is gone") from error
        except StreamStatusError:
            raise  # The world has ended, and the stream with it.
        except Exception as error:
            return self._error_response("step", error).SerializeToString()
        return answer

    def paced(self, is_slow: bool) -> None:
        self._worlds.paced(self._world_name, is_slow)

    def abandon(self) -> None:
        self._caller.leave()

    def handle(
        self, request: dm_env_rpc_pb2.EnvironmentRequest
    ) -> dm_env_rpc_pb2.EnvironmentResponse:
        """Execute a request, and return its answer or, if it fails, an error Status."""
        response = dm_env_rpc_pb2.EnvironmentResponse()
        field = request.WhichOneof("payload")
        self.idle_since = None
        try:
            if field is None:
                raise RequestError.invalid("the request has no payload that this server knows")
            self._counts.add(field)
            if field != "step":
                _log.debug("%s sends a %s request", self._peer, field)
            if not self._lifecycle.allows(field):
                raise RequestError.not_now(
                    f"a {field} request is not allowed while the connection is "
                    f"{self._lifecycle.state.value}"
                )
            answer = _HANDLERS[field](self, getattr(request, field))
            self._lifecycle.answered(field, getattr(request, field), answer)
            payload = getattr(response, field)
            # An empty answer, such as LeaveWorldResponse, would not be set by a merge.
            payload.SetInParent()
            payload.MergeFrom(answer)
        except CallerGoneError as error:
            raise StreamStatusError("CANCELLED", "the client is gone") from error
        # Neither is an answer: another thread takes the request, or the stream ends.
        except (ElsewhereError, StreamStatusError):
            raise
        except Exception as error:
            return self._error_response(str(field), error)
        finally:
            if not self._had_world:
                self.idle_since = time.monotonic()
        return response

    def _error_response(self, field: str, error: Exception) -> dm_env_rpc_pb2.EnvironmentResponse:
        return dm_env_rpc_pb2.EnvironmentResponse(error=self._failed(field, error))

    def _failed(self, field: str, error: Exception) -> status_pb2.Status:
        """Return the Status for an exception."""
        # The text may quote the refused value, which may be large.
        size = self._limits.error_bytes
        refusal = refusal_of(error)
        if refusal is not None:
            self._host.activity.refused(self._peer, field, str(refusal))
            return status_pb2.Status(code=refusal.code, message=sendable(str(refusal), size))
        # Logged and counted here, with its traceback; the client gets the text.
        self._host.error_log.add(error, f"a {field} request of {self._peer} failed")
        text = f"the environment failed in a {field} request: {described(error)}"
        status = status_pb2.Status(code=code_pb2.INTERNAL, message=sendable(text, size))
        sends_tracebacks = self._host.options.send_tracebacks
        # A traceback shows paths and code of the server's machine: by default only clients on
        # loopback get it.
        if sends_tracebacks is None:
            sends_tracebacks = is_loopback(urllib.parse.unquote(self._peer))
        if sends_tracebacks:
            detail = error_details_pb2.DebugInfo(
                stack_entries=[
                    sendable(entry, size) for entry in traceback.format_tb(error.__traceback__)
                ],
                detail=sendable(described(error, repr), size),
            )
            status.details.add().Pack(detail)
        return status

    def close(self) -> None:
        """End the session: its agent leaves the world, and worlds that it created become idle."""
        if self._agent is not None:
            try:
                self._leave()
            except Exception as error:
                text = f"the agent of {self._peer} could not leave its world"
                self._host.error_log.add(error, text)
        # Also if leaving failed: the worlds of a lost client must not stay forever.
        self._worlds.creator_gone(self)
        if self._has_connection:
            self._host.activity.ended(self._peer)

    def _create_world(
        self, request: dm_env_rpc_pb2.CreateWorldRequest
    ) -> dm_env_rpc_pb2.CreateWorldResponse:
        # If no world is created, a JoinWorld that follows must not join an earlier one.
        self._lifecycle.created = ""
        name = self._worlds.create(self._unpack_settings(request.settings), creator=self)
        self._had_world = True
        return dm_env_rpc_pb2.CreateWorldResponse(world_name=name)

    def _join_world(
        self, request: dm_env_rpc_pb2.JoinWorldRequest
    ) -> dm_env_rpc_pb2.JoinWorldResponse:
        self._world_named(request)  # Raises an error if the name is too long.
        name = self._to_join(request)
        agent, owner = self._worlds.join(name, self._unpack_settings(request.settings))
        self._agent, self._world_name = agent, name
        self.may_wait, self.owner = agent.may_wait, owner
        try:
            self._adopt_specs()
        except BaseException:
            # A client that got an error believes that it has not joined.
            self._leave()
            raise
        self._had_world = True
        return dm_env_rpc_pb2.JoinWorldResponse(specs=self._specs)

    def _step(self, request: dm_env_rpc_pb2.StepRequest) -> dm_env_rpc_pb2.StepResponse:
        actions = None
        with in_request():
            requested = [
                self._observations.uid_to_name(uid)
                # A UID that is requested twice is answered once: the answer is a map.
                for uid in dict.fromkeys(request.requested_observations)
            ]
            if self._lifecycle.state is State.RUNNING:
                actions = self._actions.unpack(request.actions, Budget(self._limits))
                for name, value in actions.items():
                    self._actions.field(name).conform(value)
        state, observations = self._joined_agent().step(actions, requested)
        assert self._codec is not None, "there is one while an agent is joined"
        try:
            answer = self._codec.encode(state, observations)
        except SpecError as error:
            raise environment_error(error) from error
        assert isinstance(answer, bytes)
        return dm_env_rpc_pb2.EnvironmentResponse.FromString(answer).step

    def _reset(self, request: dm_env_rpc_pb2.ResetRequest) -> dm_env_rpc_pb2.ResetResponse:
        settings = self._unpack_settings(request.settings)
        with self._worlds.holding(self._world_name, settings):
            try:
                self._joined_agent().reset(settings)
            finally:
                # Also after an error: if only closing the replaced environment failed, the
                # settings are in force.
                self._adopt_specs()
        return dm_env_rpc_pb2.ResetResponse(specs=self._specs)

    def _reset_world(
        self, request: dm_env_rpc_pb2.ResetWorldRequest
    ) -> dm_env_rpc_pb2.ResetWorldResponse:
        name = self._world_named(request)
        # The caller needs no INTERRUPTED step: it has the answer.
        caller = self._agent if name == self._world_name else None
        self._worlds.reset(name, self._unpack_settings(request.settings), caller)
        return dm_env_rpc_pb2.ResetWorldResponse()

    def _leave_world(
        self, request: dm_env_rpc_pb2.LeaveWorldRequest
    ) -> dm_env_rpc_pb2.LeaveWorldResponse:
        if self._agent is not None:
            self._leave()
        return dm_env_rpc_pb2.LeaveWorldResponse()

    def _destroy_world(
        self, request: dm_env_rpc_pb2.DestroyWorldRequest
    ) -> dm_env_rpc_pb2.DestroyWorldResponse:
        name = self._world_named(request)
        if self._agent is not None and name == self._world_name:
            raise RequestError.not_now(
                f"this connection is joined to world {name!r}; leave it first"
            )
        self._worlds.destroy(name)
        return dm_env_rpc_pb2.DestroyWorldResponse()

    def _extension(self, request: any_pb2.Any) -> any_pb2.Any:
        extensions = self._host.extensions
        known = extensions.get(request.TypeName())
        if known is None:
            names = ", ".join(extensions) or "none"
            raise RequestError(
                code_pb2.UNIMPLEMENTED,
                f"this server has no extension {request.type_url!r}; extensions: {names}",
            )
        message_class, handler = known
        what = repr(request.type_url)
        try:
            # Bounded, too: an extension's message can expand in memory like any other.
            message: Any = bounded_parsing.parse(
                message_class, request.value, Budget(self._limits), what
            )
        except DECODE_ERRORS as error:
            raise RequestError.invalid(f"{what} cannot be parsed: {error}") from error
        world = None if self._agent is None else self._worlds.get(self._world_name)
        answer = any_pb2.Any()
        answer.Pack(handler(message, world))
        return answer

    def _world_named(self, request: Any) -> str:
        """Return the world name in a request, or raise RequestError if the name is too long."""
        name: str = request.world_name
        with in_request():
            self._limits.check_name(name, "the world name")
        return name

    def _to_join(self, request: dm_env_rpc_pb2.JoinWorldRequest) -> str:
        """Return the name of the world to join: by default, the one created last on this stream."""
        # Without the connection, only the process that has it knows all worlds of the stream.
        created = self._lifecycle.created if self._has_connection else ""
        return request.world_name or created

    def _joined_agent(self) -> Agent:
        assert self._agent is not None, "the lifecycle table allows this request only if joined"
        return self._agent

    def _adopt_specs(self) -> None:
        self._specs = dm_env_rpc_pb2.ActionObservationSpecs()
        self._specs.CopyFrom(self._joined_agent().specs)
        self._actions = SpecManager(self._specs.actions, "action")
        self._observations = SpecManager(self._specs.observations, "observation")
        self._codec = ServerStepCodec(self._actions, self._observations, self._limits)

    def _leave(self) -> None:
        agent, self._agent, self._codec = self._joined_agent(), None, None
        owner, self.owner = self.owner, None
        self.may_wait = False
        try:
            if owner is None:
                agent.leave()
            else:
                owner.call(agent.leave)  # Runs in this thread, except after a failure to join.
        except OwnerGoneError:
            pass  # The environment was abandoned, and its agent with it.
        finally:
            self._worlds.left(self._world_name)

    def _unpack_settings(self, settings: Mapping[str, dm_env_rpc_pb2.Tensor]) -> dict[str, Any]:
        """Unpack settings, or raise RequestError if one is invalid or they exceed the limits."""
        budget = Budget(self._limits)
        unpacked = {}
        with in_request():
            for name, tensor in settings.items():
                self._limits.check_name(name, "the name of setting")
                where = f"setting {name!r}"
                codec = codecs.codec_of_payload(tensor, where)
                value = packing.unpack_payload(tensor, codec, tensor.shape, where, budget)
                # Code of environments expects int, float and bool of Python, not NumPy scalars.
                unpacked[name] = value.item() if isinstance(value, np.generic) else value
        return unpacked


# Functions, shared by all sessions: a session with a table of its bound methods would refer to
# itself.
_HANDLERS: dict[str, Callable[[Session, Any], Any]] = {
    field.name: getattr(Session, f"_{field.name}")
    for field in dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields
}
