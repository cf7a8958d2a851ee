"""The connections, worlds and agents of one check.

At the end of a check, all its connections, worlds and agents are removed, so that the next check
finds the server unchanged. If a world remained, the next check could not create one on a server
that allows only one world.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Facts, NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import Probe, ProbeAgent
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.tensors.settings import pack_settings

_GONE_SECONDS = 1.0
"""The time limit, in seconds, for the server to notice a closed connection."""

_PAUSE_SECONDS = 0.02

_ANSWER_SECONDS = 1.0
"""The time limit, in seconds, for each answer during the cleanup."""

_END_SECONDS = 2.0
"""The time limit, in seconds, for the thread of a companion to end."""


def _attempts() -> Iterator[bool]:
    """Yield, for each attempt, whether it is the last one.

    Several attempts are made, because servers need time to notice closed connections.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        yield False
        time.sleep(_PAUSE_SECONDS)
    yield True


class _Companion:
    """An additional agent, for worlds that wait for several agents.

    The agent joins a world and takes valid steps in a loop until it is stopped.

    Args:
      probe: its connection.
      request: the JoinWorldRequest to send.
      options: the options, including the policy.

    Raises:
      ViolationError: the server refused the JoinWorld.
    """

    def __init__(self, probe: Probe, request: dm_env_rpc_pb2.JoinWorldRequest, options: Options):
        joined = probe.accept(request, "a JoinWorldResponse for each agent that the world needs")
        self._agent = ProbeAgent(probe, joined, request.world_name, options, Facts())
        self._thread = threading.Thread(target=self._act, name="companion", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the connection, even if a step is pending."""
        self._agent.probe.abort()
        self._thread.join(_END_SECONDS)

    def _act(self) -> None:
        try:
            while True:
                if not self._agent.probe.is_open:
                    break
                self._agent.step()
        except (ViolationError, NotOfferedError):
            pass  # The check will report that its world lacks an agent.


class Trial:
    """One run of one check, as a context manager that cleans up at its end.

    Args:
      address: the address of the server.
      options: how to use the server.
      facts: the facts about the server.
    """

    def __init__(self, address: str, options: Options, facts: Facts):
        self.options = options
        self.facts = facts
        self._address = address
        self._probes: list[Probe] = []
        self._forgotten: list[str] = []
        self._companions: dict[str, list[_Companion]] = {}
        self._all_left = True
        self._was_answered = False

    @property
    def was_answered(self) -> bool:
        """Whether the server has answered on a connection of this check."""
        return self._was_answered or any(probe.was_answered for probe in self._probes)

    def connect(self) -> Probe:
        """Open another connection.

        Raises:
          ViolationError: the server accepted the connection, but does not answer.
          DmEnvRpcClientError: the connection failed.
        """
        probe = self._open()
        self._probes.append(probe)
        return probe

    def first_answer(self, request: envelopes.Request, expected: str) -> tuple[Probe, Any]:
        """Open a connection, send a request on it, and wait for the answer.

        A refused request is repeated for a short time, because the server might not have noticed
        yet that earlier connections, including those of other programs, are closed.

        Returns:
          The connection, and the response message or the error Status.

        Raises:
          As `connect` and `Probe.ask`.
        """
        first: ViolationError | None = None
        for is_last in _attempts():
            try:
                probe = self.connect()
            except DmEnvRpcClientError as error:
                if first is None:
                    raise
                raise first from error  # The server has ended since.
            try:
                answer = probe.ask(request, expected)
                if is_last or not isinstance(answer, status_pb2.Status):
                    return probe, answer
            except ViolationError as violation:
                if is_last or not violation.is_unanswered:
                    raise
                first = first or violation
            probe.close()
        raise AssertionError("the last attempt must return or raise")

    def _open(self) -> Probe:
        if not self.facts.connections:
            return Probe(self._address, self.options.timeout, self.options.security())
        for is_last in _attempts():
            # The server may still count a connection that was just closed.
            probe = Probe(self._address, self.options.timeout, self.options.security())
            if probe.is_answered() and (is_last or not probe.was_refused):
                probe.was_refused = False
                return probe
            probe.close()
        raise ViolationError(
            f"an answer, because the server accepts {self.facts.connections} connections",
            "LeaveWorldRequest",
            f"no answer within {_GONE_SECONDS} s after the other connections were closed",
            is_unanswered=True,
        )

    def usable(self, probe: Probe) -> Probe:
        """Return the given connection, or a new one if the given one cannot send another request.

        A connection is replaced if it is closed, or after an error that is not known to be a no-op.
        """
        if probe.is_open and (self.facts.errors_are_no_ops or not probe.was_refused):
            return probe
        if self.facts.survives_errors:
            self._has_left(probe)  # On some servers nothing else frees its place.
        probe.close()
        return self.connect()

    def recover(self, agent: ProbeAgent) -> None:
        """If an agent's connection is unusable, rejoin its world on a new connection.

        Raises:
          NotOfferedError: the world cannot be joined again.
        """
        probe = self.usable(agent.probe)
        if probe is not agent.probe:
            agent.joined(*self.rejoin(probe, agent.world_name))

    def rejoin(
        self, probe: Probe, world_name: str
    ) -> tuple[Probe, dm_env_rpc_pb2.JoinWorldResponse]:
        """Join a world again through `probe`, which is a replacement or additional connection.

        Raises:
          NotOfferedError: the world cannot be joined again.
        """
        probe, answer = self._ask_to_join(probe, world_name, is_patient=True)
        if isinstance(answer, status_pb2.Status):
            raise NotOfferedError(
                f"the world cannot be joined again after an error: {answer.message}"
            )
        return probe, answer

    def create_world(self, probe: Probe) -> str:
        """Create a world and return its name, or return the `world_name` in the options.

        Raises:
          ViolationError: the valid settings were refused.
        """
        if self.options.world_name is not None:
            return self.options.world_name
        created = probe.accept(
            self.create_request(), "a CreateWorldResponse, because the settings are valid"
        )
        return str(created.world_name)

    def create_request(self) -> dm_env_rpc_pb2.CreateWorldRequest:
        """Return a valid CreateWorldRequest."""
        return dm_env_rpc_pb2.CreateWorldRequest(
            settings=pack_settings(self.options.create_settings)
        )

    def create_another_world(self, probe: Probe) -> str:
        """Create one more world, or raise NotOfferedError if the server allows only one."""
        if self.options.world_name is not None or self.options.several_worlds is False:
            raise NotOfferedError("the server has only one world")
        if self.options.several_worlds:
            return self.create_world(probe)
        answer = probe.ask(self.create_request())
        if not isinstance(answer, dm_env_rpc_pb2.CreateWorldResponse):
            raise NotOfferedError(f"the server has only one world: {answer.message}")
        return str(answer.world_name)

    def forget_world(self, name: str) -> None:
        """Record that the check has destroyed a world."""
        self._forgotten.append(name)

    def _remaining_worlds(self) -> list[str]:
        """Return the worlds that the check created but did not destroy, ordered by connection."""
        names = [name for probe in self._probes for name in probe.created]
        for name in self._forgotten:
            names.remove(name)
        return names

    def invalid_settings(self, kind: str) -> dict[str, dm_env_rpc_pb2.Tensor]:
        """Return settings that the server must refuse, or raise NotOfferedError if none are given.

        Args:
          kind: "create", "join" or "reset".
        """
        invalid = pack_settings(getattr(self.options, f"invalid_{kind}_settings"))
        if not invalid:
            raise NotOfferedError(f"no invalid {kind} settings were given")
        return dict(invalid)

    def join_request(self, world_name: str) -> dm_env_rpc_pb2.JoinWorldRequest:
        """Return a valid JoinWorldRequest."""
        return dm_env_rpc_pb2.JoinWorldRequest(
            world_name=world_name, settings=pack_settings(self.options.join_settings)
        )

    def reset_world_request(self, world_name: str) -> dm_env_rpc_pb2.ResetWorldRequest:
        """Return a valid ResetWorldRequest."""
        return dm_env_rpc_pb2.ResetWorldRequest(
            world_name=world_name, settings=pack_settings(self.options.reset_world_settings)
        )

    def join(self, probe: Probe | None = None, world_name: str | None = None) -> ProbeAgent:
        """Join a world and return the agent.

        Args:
          probe: the connection; None opens one and, if the world is full, waits until the server
            has noticed closed connections.
          world_name: the world; None creates one.
        """
        is_patient = probe is None
        probe = probe or self.connect()
        name = self.create_world(probe) if world_name is None else world_name
        probe, answer = self._ask_to_join(probe, name, is_patient)
        if isinstance(answer, status_pb2.Status):
            raise probe.violation("a JoinWorldResponse", answer)
        self._accompany(name)
        return ProbeAgent(probe, answer, name, self.options, self.facts)

    def _ask_to_join(self, probe: Probe, name: str, is_patient: bool) -> tuple[Probe, Any]:
        """Join a world, and if `is_patient`, retry until other agents have left.

        Returns:
          The connection, which can be a new one, and the answer.
        """
        # A world may end with the connection that created it.
        can_reconnect = name not in probe.created
        for is_last in _attempts():
            answer = probe.ask(self.join_request(name), "a JoinWorldResponse")
            if is_last or not is_patient or not isinstance(answer, status_pb2.Status):
                break
            if can_reconnect:
                probe = self.usable(probe)
            elif not self.facts.survives_errors:
                break
        return probe, answer

    def run(self) -> ProbeAgent:
        """Join a world, start a sequence, and return the agent."""
        agent = self.join()
        agent.run()
        return agent

    def dismiss_companions(self, world_name: str) -> None:
        """Remove the companions from a world."""
        for companion in self._companions.pop(world_name, []):
            companion.stop()

    def _accompany(self, world_name: str) -> None:
        """Add the companions that the world still needs."""
        companions = self._companions.setdefault(world_name, [])
        while len(companions) < self.options.companions:
            request = self.join_request(world_name)
            companions.append(_Companion(self._open(), request, self.options))

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clean_up()

    def clean_up(self) -> None:
        """Close all connections and destroy all created worlds. The trial remains usable."""
        try:
            for world_name in list(self._companions):
                self.dismiss_companions(world_name)
            names = self._remaining_worlds()
            self._destroy_worlds(names, self._leave_worlds(bool(names)))
        finally:
            self._was_answered = self.was_answered
            for probe in self._probes:
                probe.close()
            self._probes.clear()
            self._forgotten.clear()

    def _leave_worlds(self, keeps_one: bool) -> Probe | None:
        """Close all connections, but keep and return a usable one if `keeps_one` is set."""
        for probe in self._probes:
            probe.hurry(_ANSWER_SECONDS)
        left = [probe for probe in self._probes if self._has_left(probe)]
        kept = left[0] if left and keeps_one else None
        self._all_left = len(left) == len(self._probes)
        for probe in self._probes:
            if probe is not kept:
                probe.close()
        return kept

    def _has_left(self, probe: Probe) -> bool:
        if not probe.is_open or probe.pending:
            return False
        try:
            probe.ask(dm_env_rpc_pb2.LeaveWorldRequest())
        except ViolationError:
            return False
        return True

    def _destroy_worlds(self, names: list[str], probe: Probe | None) -> None:
        """Destroy the created worlds, ignoring refusals by the server."""
        deadline = time.monotonic() + _GONE_SECONDS
        try:
            while True:
                if not names:
                    break
                probe = probe or Probe(self._address, _ANSWER_SECONDS, self.options.security())
                answer = probe.ask(dm_env_rpc_pb2.DestroyWorldRequest(world_name=names[-1]))
                if isinstance(answer, dm_env_rpc_pb2.DestroyWorldResponse) or not (
                    self._may_be_left(answer) and time.monotonic() < deadline
                ):
                    names.pop()
                    continue
                if not self.facts.survives_errors:
                    probe.close()
                    probe = None
                time.sleep(_PAUSE_SECONDS)
        except (ViolationError, DmEnvRpcClientError):
            pass
        finally:
            if probe is not None:
                probe.close()

    def _may_be_left(self, refusal: status_pb2.Status) -> bool:
        """Return whether a connection that was just closed might explain the refusal."""
        return not self._all_left and refusal.code != code_pb2.UNIMPLEMENTED
