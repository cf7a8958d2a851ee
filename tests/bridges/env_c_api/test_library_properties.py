"""Properties of a library, without a library."""

from __future__ import annotations

import pytest

from dm_env_rpc_client.bridges.env_c_api.library_properties import (
    PropertyAttributes,
    list_recursively,
)
from dm_env_rpc_client.errors import ProtocolError


def test_a_key_that_turns_up_again_is_not_listed_again() -> None:
    tree = {"": ["a", "b"], "a": ["", "a", "c"], "b": ["c"], "c": []}
    listed = []

    def list_property(key: str) -> dict[str, PropertyAttributes]:
        listed.append(key)
        return dict.fromkeys(tree[key], PropertyAttributes.LISTABLE)

    assert sorted(list_recursively(list_property, "")) == ["", "a", "b", "c"]
    assert sorted(listed) == ["", "", "a", "b", "c"]


def test_properties_have_a_limit() -> None:
    def list_property(key: str) -> dict[str, PropertyAttributes]:
        return dict.fromkeys((f"{key}.{i}" for i in range(300)), PropertyAttributes.LISTABLE)

    with pytest.raises(ProtocolError, match="more than 10000 properties below ''"):
        list_recursively(list_property, "")
