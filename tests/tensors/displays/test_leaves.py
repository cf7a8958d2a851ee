from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from google.protobuf import struct_pb2

from dm_env_rpc_client.tensors.displays.markup import named_leaves, rebuild


class Pair(NamedTuple):
    left: Any
    right: Any


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "one leaf": (1, {"action": 1}),
    "a mapping": ({"b": 1, "a": 2}, {"b": 1, "a": 2}),
    "nested": ({"arm": {"torque": 1, "grip": 2}, "mode": 3},
               {"arm.torque": 1, "arm.grip": 2, "mode": 3}),
    "a tuple": ((1, {"a": 2}), {"0": 1, "1.a": 2}),
    "a list in a mapping": ({"joints": [1, 2]}, {"joints.0": 1, "joints.1": 2}),
    "a named tuple": (Pair(1, 2), {"0": 1, "1": 2}),
    "nothing": ({}, {}),
    "a message that may be a mapping": ({"a": struct_pb2.Struct()}, {"a": struct_pb2.Struct()}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_names_lead_to_leaves_and_back(case: str) -> None:
    structure, flat = CASES[case]
    assert named_leaves(structure, "action") == flat
    assert list(named_leaves(structure, "action")) == list(flat)
    others = {name: index for index, name in enumerate(flat)}
    rebuilt = rebuild(structure, others, "action")
    assert type(rebuilt) is type(structure)
    assert named_leaves(rebuilt, "action") == others


def test_a_message_is_a_leaf_though_it_may_be_a_mapping() -> None:
    message = struct_pb2.Struct()
    assert named_leaves({"a": message}, "x") == {"a": message}


def test_a_mapping_is_rebuilt_without_what_has_no_value() -> None:
    structure = {"arm": {"torque": 1, "grip": 2}, "leg": {"torque": 3}}
    assert rebuild(structure, {"arm.grip": 5}, "action") == {"arm": {"grip": 5}}


def test_a_tuple_needs_all_its_values() -> None:
    with pytest.raises(KeyError, match="1"):
        rebuild((1, 2), {"0": 5}, "action")
