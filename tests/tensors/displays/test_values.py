"""What values, specs and time steps look like."""

from __future__ import annotations

import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import Any, NamedTuple

import dm_env
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2, struct_pb2

from dm_env_rpc_client import DmEnvRpcError, connect, create_world, make
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.tensors.displays import markup, plots
from dm_env_rpc_client.tensors.displays.markup import named_leaves, rebuild
from dm_env_rpc_client.tensors.displays.spec_tables import (
    are_specs,
    bounds_text,
    dtype_text,
    spec_table,
    value_range,
)
from dm_env_rpc_client.tensors.displays.values import show_timestep, show_value
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.support.environments import Robot

ATTACK = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (None, "none"),
        (3, "3"),
        (np.float32(0.25), "0.25"),
        (np.int64(-7), "-7"),
        (np.True_, "True"),
        ("go left", "go left"),
        (b"\x00", "x00"),
        (np.array("hello", object), "hello"),
        (np.array(["one", "two"], object), "two"),
        (np.zeros(0), "no elements"),
        (np.array([5.5]), "5.5"),
        (any_pb2.Any(type_url="type/of/it"), "type/of/it"),
        (np.array([any_pb2.Any(type_url="type/of/it")], object), "type/of/it"),
    ],
)
def test_texts_and_numbers_are_text(value: Any, part: str) -> None:
    shown = show_value(value)
    assert part in shown
    assert "<svg" not in shown
    assert "<img" not in shown


def test_a_short_vector_is_bars_and_its_numbers() -> None:
    shown = show_value(np.array([1.5, -2.5]))
    assert shown.count("<rect") == 2
    assert "1.5, -2.5" in shown


def test_a_long_vector_is_a_line_and_its_statistics() -> None:
    shown = show_value(np.arange(1000.0))
    assert "<polyline" in shown
    assert "1000 elements from 0 to 999, mean 499.5" in shown


def test_an_image_is_an_image() -> None:
    assert "data:image/png;base64," in show_value(np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize("package", ["PIL", "PIL.Image", "matplotlib"])
def test_an_image_is_a_summary_where_nothing_can_draw_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    shown = show_value(np.zeros((8, 8), np.float32))
    assert "<img" not in shown
    assert "shape [8, 8]" in shown


def test_any_other_array_is_a_summary_of_it() -> None:
    shown = show_value(np.zeros((2, 3, 4, 5)))
    assert "shape [2, 3, 4, 5]" in shown
    assert "from 0 to 0" in shown


@pytest.mark.parametrize(
    "value", [np.full(5000, np.nan), np.ones(5000, bool), np.ones((2, 2, 2, 2), bool)]
)
def test_odd_arrays_are_summed_up_too(value: Any) -> None:
    assert f"{value.size} " in show_value(value)


@pytest.mark.parametrize(
    "value",
    [
        ATTACK,
        np.array(ATTACK, object),
        np.array([ATTACK] * 3, object),
        any_pb2.Any(type_url=ATTACK),
    ],
)
def test_what_a_server_sends_is_never_html(value: Any) -> None:
    check_text(show_value(value))


def check_text(shown: str) -> None:
    assert "<script" not in shown
    assert "&lt;script" in shown


def test_names_titles_and_errors_are_never_html() -> None:
    check_text(markup.section(ATTACK, ""))
    check_text(markup.table([ATTACK], []))
    check_text(spec_table({ATTACK: specs.Array((), np.int32, ATTACK)}))
    drawn = plots.line([1, 2], title=ATTACK)
    check_text(drawn)
    assert f'aria-label="{markup.escape(ATTACK)}"' in drawn
    ElementTree.fromstring(drawn)

    def broken() -> None:
        raise RuntimeError(ATTACK)

    with serve(broken) as server, connect(server.address) as connection:
        with pytest.raises(DmEnvRpcError):
            create_world(connection)
        check_text(server._repr_html_())


@pytest.mark.parametrize(
    "value",
    [
        "a" * 10_000_000,
        np.array(["a" * 10_000] * 10_000, object),
        np.zeros(20_000_000, np.float32),
        np.zeros((4000, 4000), np.float32),
        np.zeros((300, 300, 300), np.float32),
    ],
    ids=["text", "texts", "vector", "image", "cube"],
)
def test_however_large_a_value_is_its_display_is_small_and_quick(value: Any) -> None:
    started = time.thread_time()
    shown = show_value(value)
    assert len(shown) < 100_000
    assert time.thread_time() - started < 5.0


def test_what_is_put_in_is_text_in_elements_and_in_attributes() -> None:
    escaped = markup.escape("""<img src=x onerror="alert('1')">""")
    assert not {"<", ">", '"', "'"} & set(escaped)
    assert markup.escape("a & b") == "a &amp; b"


def test_a_text_that_cannot_be_sent_is_shown_all_the_same() -> None:
    assert markup.escape("a\ud800b").encode() == b"a?b"


def test_a_long_text_is_cut() -> None:
    assert markup.shorten("a" * 10, 10) == "a" * 10
    assert markup.shorten("a" * 11, 10) == "a" * 9 + "…"
    assert len(markup.escape("a" * 1_000_000)) == markup.MAX_TEXT


def test_a_table_shows_its_first_rows_and_counts_the_others() -> None:
    rows = [(f"row{number};",) for number in range(markup.MAX_ROWS + 5)]
    html = markup.table(["name"], rows)
    assert f"row{markup.MAX_ROWS - 1};" in html
    assert f"row{markup.MAX_ROWS};" not in html
    assert "… and 5 more" in html


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


def test_each_observation_is_shown_for_what_it_is() -> None:
    with serve(Robot) as server, make(server.address) as env:
        env.reset()
        action = {"arm": {"torque": [1, 0, 1], "grip": True}, "mode": 1, "speech": ATTACK}
        shown = show_timestep(env.step(action))
    assert "TimeStep MID" in shown
    assert shown.count("<img") == 2
    for part in ("camera.rgb", "camera.depth", "joints.2", "reward", "discount", "&lt;script&gt;"):
        assert part in shown
    assert ATTACK not in shown


def test_a_first_step_has_neither_reward_nor_discount(catch_server: Server) -> None:
    with make(catch_server.address) as env:
        shown = show_timestep(env.reset())
    assert "TimeStep FIRST" in shown
    assert shown.count("none") >= 2


def test_steps_stacked_along_time_are_pictures_and_plots(catch_server: Server) -> None:
    with make(catch_server.address, {"rows": 10}) as env:
        shown = show_timestep(env.unroll({"paddle": np.ones(20, int)}))
    assert "20 TimeSteps: 2 FIRST, 16 MID, 2 LAST" in shown
    assert shown.count("<polyline") == 2
    assert shown.count("<img") == 1
    assert "8 of 20, each [10, 5]" in shown


def test_a_step_that_makes_no_sense_is_shown_all_the_same() -> None:
    odd = dm_env.TimeStep(step_type=7, reward=None, discount=None, observation=[])
    assert "TimeStep 7" in show_timestep(odd)
    nested = dm_env.TimeStep(dm_env.StepType.MID, {ATTACK: 1.0}, 1.0, np.zeros(3))
    shown = show_timestep(nested)
    assert ATTACK not in shown
    assert "observation" in shown


@pytest.mark.parametrize(
    ("spec", "dtype", "bounds"),
    [
        (specs.Array((), np.float32), "float32", ""),
        (specs.DiscreteArray(3), "int32", "0 … 2"),
        (specs.BoundedArray((), np.uint8, 0, 255), "uint8", "0 … 255"),
        (specs.BoundedArray((2,), np.float64, -1, np.inf), "float64", "-1 … inf"),
        (specs.BoundedArray((2,), np.int32, [0, 1], [2, 3]), "int32", "[0, 1] … [2, 3]"),
        (specs.BoundedArray((2,), np.int32, [0, 0], [3, 3]), "int32", "0 … 3"),
        (specs.BoundedArray((9,), np.int32, range(9), 20), "int32", "[0, 1, 2, 3, …] … 20"),
        (specs.StringArray(()), "string", ""),
        (specs.Array((), object), "proto", ""),
        (specs.Array((), bool), "bool", ""),
    ],
)
def test_a_spec_in_words(spec: specs.Array, dtype: str, bounds: str) -> None:
    assert dtype_text(spec) == dtype
    assert bounds_text(spec) == bounds


def test_a_table_has_a_row_for_each_spec_with_its_name_dtype_shape_and_bounds() -> None:
    html = spec_table(
        {
            "arm": {"torque": specs.BoundedArray((3,), np.float32, -1, 1)},
            "path": VariableArray((-1, 2), np.int64),
        }
    )
    for part in ("arm.torque", "float32", "-1 … 1", "path", "any x 2", "int64"):
        assert part in html
    assert html.count("<tr") == 3
    assert "paddle" in spec_table(specs.DiscreteArray(3, name="paddle"))
    assert "none" in spec_table({})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": specs.Array((), int)}, True),
        ({"a": {"b": specs.Array((), int)}, "c": [specs.Array((), int)]}, True),
        ({"a": 1}, False),
        ({"a": specs.Array((), int), "b": 1}, False),
        ({}, False),
    ],
)
def test_which_dictionaries_are_specs(value: Any, expected: bool) -> None:
    assert are_specs(value) is expected


def test_a_dictionary_that_holds_itself_is_no_spec() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert not are_specs(endless)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (specs.BoundedArray((2,), np.float32, [0, -3], [1, 5]), (-3, 5)),
        (specs.BoundedArray((), np.float32, 0, np.inf), (0, None)),
        (specs.Array((), np.float32), (None, None)),
        (specs.DiscreteArray(4), (0, 3)),
    ],
)
def test_the_range_of_a_spec(spec: specs.Array, expected: tuple[Any, Any]) -> None:
    assert value_range(spec) == expected
