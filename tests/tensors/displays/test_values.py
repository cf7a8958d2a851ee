from __future__ import annotations

import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2

from dm_env_rpc_client import DmEnvRpcError, connect, create_world
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.tensors.displays import markup, plots
from dm_env_rpc_client.tensors.displays.spec_tables import spec_table
from dm_env_rpc_client.tensors.displays.values import show_value

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
