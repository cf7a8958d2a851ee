"""The connections, worlds and agents of one check.

They are removed at the end, so that the next check finds the server as this one did. On a server
with one world, the next check could not create a world otherwise.
"""

from __future__ import annotations

import time
from types import TracebackType

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.companion import Companion
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import Probe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.tensors.settings import pack_settings

__all__ = ["Trial"]

_GONE_SECONDS = 1.0
"""How long the server may take to notice a closed connection."""

_ANSWER_SECONDS = 1.0
"""How long each answer during the cleanup may take."""


class Trial:
    """One run of one check. A context, which cleans up at its end.

    Args:
      address: the server.
      options: how to use it.
    """

    def __init__(self, address: str, options: Options):
        self.options = options
        self._address = address
        self._probes: list[Probe] = []
        self._worlds: list[str] = []
        self._companions: dict[str, list[Companion]] = {}

    def connect(self) -> Probe:
        """Opens another connection; DmEnvRpcClientError if that fails."""
        probe = Probe(self._address, self.options.timeout, self.options.security())
        self._probes.append(probe)
        return probe

    def create_world(self, probe: Probe) -> str:
        """Creates a world and returns its name; or returns `world_name` of the options.

        Raises:
          ViolationError: the valid settings were refused.
        """
        if self.options.world_name is not None:
            return self.options.world_name
        created = probe.accept(
            self.create_request(), "a CreateWorldResponse, because the settings are valid"
        )
        return self._created(created)

    def create_request(self) -> dm_env_rpc_pb2.CreateWorldRequest:
        """Returns a valid CreateWorldRequest."""
        return dm_env_rpc_pb2.CreateWorldRequest(
            settings=pack_settings(self.options.create_settings)
        )

    def create_another_world(self, probe: Probe) -> str:
        """Creates one more world; NotOfferedError if the server has room for one only."""
        if self.options.world_name is not None or self.options.several_worlds is False:
            raise NotOfferedError("the server has one world only")
        if self.options.several_worlds:
            return self.create_world(probe)
        answer = probe.ask(self.create_request())
        if not isinstance(answer, dm_env_rpc_pb2.CreateWorldResponse):
            raise NotOfferedError(f"the server has one world only: {answer.message}")
        return self._created(answer)

    def _created(self, response: dm_env_rpc_pb2.CreateWorldResponse) -> str:
        name = str(response.world_name)
        self._worlds.append(name)
        return name

    def forget_world(self, name: str) -> None:
        """Records that the check has destroyed a world."""
        self._worlds.remove(name)

    def join_request(self, world_name: str) -> dm_env_rpc_pb2.JoinWorldRequest:
        """Returns a valid JoinWorldRequest."""
        return dm_env_rpc_pb2.JoinWorldRequest(
            world_name=world_name, settings=pack_settings(self.options.join_settings)
        )

    def join(self, probe: Probe | None = None, world_name: str | None = None) -> ProbeAgent:
        """Joins a world and returns the agent.

        Args:
          probe: the connection; None opens one.
          world_name: the world; None creates one.
        """
        probe = probe or self.connect()
        name = self.create_world(probe) if world_name is None else world_name
        joined = probe.accept(self.join_request(name), "a JoinWorldResponse")
        self._accompany(name)
        return ProbeAgent(probe, joined, name, self.options)

    def dismiss_companions(self, world_name: str) -> None:
        """Removes the companions from a world."""
        for companion in self._companions.pop(world_name, []):
            companion.stop()

    def _accompany(self, world_name: str) -> None:
        """Joins the companions that the world waits for, if they have not joined yet."""
        companions = self._companions.setdefault(world_name, [])
        while len(companions) < self.options.companions:
            probe = Probe(self._address, self.options.timeout, self.options.security())
            companions.append(Companion(probe, self.join_request(world_name), self.options))

    def join_beside(self, other: ProbeAgent) -> ProbeAgent:
        """Joins the world of another agent; NotOfferedError if it takes one agent only."""
        if self.options.several_agents is False:
            raise NotOfferedError("a world takes one agent only")
        probe = self.connect()
        if self.options.several_agents:
            return self.join(probe, other.world_name)
        answer = probe.ask(self.join_request(other.world_name), "a JoinWorldResponse")
        if not isinstance(answer, dm_env_rpc_pb2.JoinWorldResponse):
            raise NotOfferedError(f"a world takes one agent only: {answer.message}")
        return ProbeAgent(probe, answer, other.world_name, self.options)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for world_name in list(self._companions):
                self.dismiss_companions(world_name)
            self._leave_worlds()
            self._destroy_worlds()
        finally:
            for probe in self._probes:
                probe.close()

    def _leave_worlds(self) -> None:
        for probe in self._probes:
            if not probe.is_clean or probe.pending:
                probe.close()
                continue
            try:
                probe.ask(dm_env_rpc_pb2.LeaveWorldRequest())
            except ViolationError:
                probe.close()

    def _destroy_worlds(self) -> None:
        """Destroys the created worlds; a server that refuses keeps them."""
        if not self._worlds:
            return
        try:
            probe = Probe(self._address, _ANSWER_SECONDS, self.options.security())
        except DmEnvRpcClientError:
            return
        deadline = time.monotonic() + _GONE_SECONDS
        try:
            while self._worlds and time.monotonic() < deadline:
                request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=self._worlds[-1])
                answer = probe.ask(request)
                if isinstance(answer, dm_env_rpc_pb2.DestroyWorldResponse) or all(
                    probe.is_clean for probe in self._probes
                ):
                    self._worlds.pop()
                else:
                    time.sleep(0.02)
        except ViolationError:
            pass
        finally:
            probe.close()
