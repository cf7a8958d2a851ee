"""What the first checks have found out about a server, on which the later ones depend."""

from __future__ import annotations

from typing import NamedTuple


class Takes(NamedTuple):
    """The clients that a check takes at the same time, without companions.

    Attributes:
      connections: the connections.
      joined: those of them that have joined a world.
      agents: those of them that have joined the same world.
    """

    connections: int = 1
    joined: int = 1
    agents: int = 1


ONE = Takes()


class Facts(NamedTuple):
    """How the server behaves where the documents leave a choice, or where it breaks a rule.

    The defaults assume nothing good, so they suit a server of which nothing is known yet.

    Attributes:
      connections: how many connections it accepts at the same time; 0 if no limit is known.
      one_client: why it refuses each request of a second client; "" if it does not, or if that is
        not known.
      one_agent: why a second client cannot join a world beside the first; "" if it can, or if that
        is not known.
      one_joined: why a second client cannot join a world of its own; "" as above.
      takes_resets: whether a Reset is carried out.
      survives_errors: whether the stream stays open after an error.
      errors_are_no_ops: whether a request that got an error has changed nothing.
      ignores_first_actions: whether the first step of a sequence ignores unknown actions.
      refuses_unknown_actions: whether a step in a sequence refuses unknown actions.
      refuses_empty_requests: whether a request without a payload gets an error, as one of another
        dialect does.
      answers_leave: whether it answers a LeaveWorld on a new connection.
    """

    connections: int = 0
    one_client: str = ""
    one_agent: str = ""
    one_joined: str = ""
    takes_resets: bool = False
    survives_errors: bool = False
    errors_are_no_ops: bool = False
    ignores_first_actions: bool = False
    refuses_unknown_actions: bool = False
    refuses_empty_requests: bool = False
    answers_leave: bool = False

    def lack(self, takes: Takes, companions: int) -> str | None:
        """Returns why there is no room for the clients of a check; None if there is.

        Args:
          takes: the clients.
          companions: the agents that each world needs beside those.
        """
        needed = takes.connections + companions * (takes.joined - takes.agents + 1)
        if self.one_client and needed > 1:
            return f"the server takes one client at a time: {self.one_client}"
        if self.connections and needed > self.connections:
            return (
                f"this takes {needed} connections at the same time, and the server accepts "
                f"{self.connections}"
            )
        if takes.agents > 1 and self.one_agent:
            return f"a world takes one agent only: {self.one_agent}"
        if takes.joined > 1 and self.one_joined:
            return f"one client can join at a time: {self.one_joined}"
        return None
