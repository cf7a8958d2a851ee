"""`%load_ext`: what IPython shows of dm_env's classes, which themselves stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from IPython.core.completer import IPCompleter, provisionalcompleter
from IPython.core.formatters import DisplayFormatter

from dm_env_rpc_client import make
from dm_env_rpc_client.notebook import load_ipython_extension, unload_ipython_extension
from dm_env_rpc_client.server import Server
from tests.extensions.test_property_tree import Shelf


class Shell:
    """What of IPython an extension gets to see."""

    def __init__(self) -> None:
        self.display_formatter = DisplayFormatter()

    def html(self, value: Any) -> str | None:
        html: str | None = self.bundle(value).get("text/html")
        return html

    def bundle(self, value: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self.display_formatter.format(value)[0]  # type: ignore[no-untyped-call]
        return bundle


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    load_ipython_extension(shell)
    yield shell
    unload_ipython_extension(shell)
    assert shell.html(dm_env.restart(np.zeros(3))) is None
    assert shell.html({"a": specs.Array((), int)}) is None


def test_time_steps_and_specs_are_html(shell: Shell, catch_server: Server) -> None:
    with make(catch_server.address) as env:
        assert "<img" in (shell.html(env.reset()) or "")
        assert "paddle" in (shell.html(env.action_spec()) or "")
        assert "board" in (shell.html(env.observation_spec()["board"]) or "")
        assert "Actions" in (shell.html(env) or "")
        assert shell.bundle(env)["text/plain"].startswith("<DmEnvAdaptor")


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {"b": [1, 2]}}, {1: specs}])
def test_any_other_dictionary_stays_text(shell: Shell, value: Any) -> None:
    assert shell.html(value) is None


def test_the_tab_key_completes_keys_of_properties_and_asks_nobody() -> None:
    shelf = Shelf({"physics.gravity": 1.0, "name": 2.0})
    shelf.tree()
    shelf.asked.clear()
    completer = IPCompleter(  # type: ignore[no-untyped-call]
        namespace={"properties": shelf}, disable_matchers=["IPCompleter.magic_matcher"]
    )
    with provisionalcompleter():
        found = [each.text for each in completer.completions('properties["phy', 15)]
    assert found == ["physics", "physics.gravity"]
    assert shelf.asked == []
