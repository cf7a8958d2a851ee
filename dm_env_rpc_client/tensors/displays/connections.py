"""HTML that displays connections and the specs of environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.tensors.displays import markup
from dm_env_rpc_client.tensors.displays.spec_tables import spec_table


def show_facts(title: str, facts: Mapping[str, Any]) -> str:
    """Return an HTML table of `facts`, a mapping of names to values, below a title."""
    rows = [(markup.escape(name), markup.escape(value)) for name, value in facts.items()]
    return markup.section(title, markup.table(("", ""), rows))


def show_connection(connection: Any) -> str:
    """Return a `Connection` or `AsyncConnection` as HTML, without sending requests."""
    cause = connection.poisoned_by
    facts = {
        "server": connection.address,
        "state": connection.lifecycle.state.value if cause is None else "unusable",
        "pending requests": connection.in_flight,
    }
    if connection.lifecycle.world_name and connection.lifecycle.state.is_joined:
        facts["world"] = connection.lifecycle.world_name
    if cause is not None:
        facts["cause"] = f"{type(cause).__name__}: {cause}"
    return show_facts(type(connection).__name__, facts)


def show_environment(
    title: str, action_spec: Any, observation_spec: Any, reward_spec: Any, discount_spec: Any
) -> str:
    """Return the specs of an environment as HTML below a title."""
    return (
        markup.section(title)
        + markup.section("Actions", spec_table(action_spec, "action"))
        + markup.section("Observations", spec_table(observation_spec, "observation"))
        + markup.section(
            "Reward and discount", spec_table({"reward": reward_spec, "discount": discount_spec})
        )
    )
