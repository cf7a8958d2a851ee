"""Properties of a library, without a library."""

from __future__ import annotations

from dm_env_rpc_client.bridges.env_c_api.library_properties import (
    PropertyAttributes,
    list_recursively,
)


def test_a_key_that_turns_up_again_is_not_listed_again() -> None:
    tree = {"": ["a", "b"], "a": ["", "a", "c"], "b": ["c"], "c": []}
    listed = []

    def list_property(key: str) -> dict[str, PropertyAttributes]:
        listed.append(key)
        return dict.fromkeys(tree[key], PropertyAttributes.LISTABLE)

    assert sorted(list_recursively(list_property, "")) == ["", "a", "b", "c"]
    assert sorted(listed) == ["", "", "a", "b", "c"]
