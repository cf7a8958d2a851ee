"""Connections and environments: where they lead, and what can be done there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dm_env_rpc_client.displays import markup
from dm_env_rpc_client.displays.spec_tables import spec_table

__all__ = ["ShownConnection", "show_connection", "show_environment", "show_facts"]


def show_facts(title: str, facts: Mapping[str, Any]) -> str:
    """Returns what is known about something: names and texts in two columns."""
    rows = [(markup.escape(name), markup.escape(value)) for name, value in facts.items()]
    return markup.section(title, markup.table(("", ""), rows))


class ShownConnection(Protocol):
    """What is shown of a connection, of either kind; none of it asks the server."""

    @property
    def address(self) -> str:
        """Of the server."""

    @property
    def lifecycle(self) -> Any:
        """What the connection is doing, as of the last answer."""

    @property
    def in_flight(self) -> int:
        """The number of requests that have no answer yet."""

    @property
    def poisoned_by(self) -> BaseException | None:
        """What made the connection unusable; None while it is usable."""


def show_connection(connection: ShownConnection) -> str:
    """Returns a connection as HTML."""
    cause = connection.poisoned_by
    facts = {
        "server": connection.address,
        "state": connection.lifecycle.state.value if cause is None else "unusable",
        "requests in flight": connection.in_flight,
    }
    if connection.lifecycle.world_name and connection.lifecycle.state.is_joined:
        facts["world"] = connection.lifecycle.world_name
    if cause is not None:
        facts["cause"] = f"{type(cause).__name__}: {cause}"
    return show_facts(type(connection).__name__, facts)


def show_environment(
    title: str, action_spec: Any, observation_spec: Any, reward_spec: Any, discount_spec: Any
) -> str:
    """Returns the specs of an environment as HTML, below a title."""
    return (
        markup.section(title)
        + markup.section("Actions", spec_table(action_spec, "action"))
        + markup.section("Observations", spec_table(observation_spec, "observation"))
        + markup.section(
            "Reward and discount", spec_table({"reward": reward_spec, "discount": discount_spec})
        )
    )
