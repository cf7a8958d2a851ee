"""An agent beside the one under test, for worlds that wait for several agents."""

from __future__ import annotations

import threading

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.facts import Facts
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import Probe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent

_END_SECONDS = 2.0


class Companion:
    """Joins a world and takes valid steps one after the other until it is stopped.

    Args:
      probe: its connection.
      request: the JoinWorldRequest to send.
      options: with the policy.

    Raises:
      ViolationError: the server refused it.
    """

    def __init__(self, probe: Probe, request: dm_env_rpc_pb2.JoinWorldRequest, options: Options):
        joined = probe.accept(request, "a JoinWorldResponse for each agent that the world needs")
        self._agent = ProbeAgent(probe, joined, request.world_name, options, Facts())
        self._is_stopped = False
        self._thread = threading.Thread(target=self._act, name="companion", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the connection, even if a step is pending."""
        self._is_stopped = True
        self._agent.probe.abort()
        self._thread.join(_END_SECONDS)

    def _act(self) -> None:
        try:
            while not self._is_stopped:
                self._agent.step()
        except (ViolationError, NotOfferedError):
            pass  # The check will report that its world lacks an agent.
