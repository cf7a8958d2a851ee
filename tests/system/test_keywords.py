"""Functions whose keyword arguments are the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from dm_env_rpc_client import connect, connect_async, make, make_async
from dm_env_rpc_client.client.connect_options import ConnectKeywords, ConnectOptions
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.server.options import HostKeywords, ServeKeywords, ServeOptions
from dm_env_rpc_client.system.keywords import attribute_texts, check_keywords, takes


@dataclasses.dataclass(kw_only=True)
class Options:
    r"""What is drawn.

    Attributes:
      size: how large, in
        pixels, as \d.
      color: which.

    Raises:
      ValueError: not an attribute.
    """

    size: int
    color: str = "red"


@takes(Options)
def draw(color: str, *, name: str = "", **options: Any) -> dict[str, Any]:
    """Draws.

    Args:
      color: its own text.
      **options: fields of Options,
        in several lines.
      name: last.
    """
    check_keywords(draw, options)
    return {"color": color, "name": name, **options}


def test_the_signature_has_the_fields_before_own_keywords_and_own_arguments_as_they_are() -> None:
    shown = inspect.signature(draw)
    assert str(shown) == "(color: 'str', *, size: 'int', name: 'str' = '') -> 'dict[str, Any]'"


def test_the_docstring_has_what_the_dataclass_says_of_its_fields() -> None:
    assert inspect.getdoc(draw) == (
        "Draws.\n\nArgs:\n  color: its own text.\n  size: how large, in\n    pixels, as \\d.\n"
        "  name: last."
    )
    assert attribute_texts(Options) == {"size": "how large, in pixels, as \\d.", "color": "which."}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sise", r"draw\(\) got an unexpected keyword argument 'sise'; did you mean 'size'\?$"),
        ("depth", r"draw\(\) got an unexpected keyword argument 'depth'$"),
    ],
)
def test_a_misspelt_keyword_is_refused_by_the_name_of_the_function(name: str, text: str) -> None:
    wrong: Any = {name: 3}
    with pytest.raises(TypeError, match=text):
        draw("blue", **wrong)


def test_typed_keywords_are_those_of_the_dataclass() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(ConnectOptions)}
    typed: dict[str, Any] = ConnectKeywords.__annotations__
    assert {name: hint.__forward_arg__ for name, hint in typed.items()} == fields
    for function in (connect, connect_async, make, make_async):
        shown = inspect.signature(function).parameters
        assert {name: shown[name].annotation for name in fields} == fields
        assert all(shown[name].default == getattr(ConnectOptions(), name) for name in fields)


def test_typed_keywords_of_serve_are_those_of_its_dataclass() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(ServeOptions)}
    hosts: dict[str, Any] = HostKeywords.__annotations__
    hosted = {name: hint.__forward_arg__ for name, hint in hosts.items()}
    assert {"environment": fields["environment"], "address": "str", **hosted} == fields
    serves: dict[str, Any] = ServeKeywords.__annotations__
    shown = inspect.signature(serve).parameters
    assert [*fields, "properties"] == list(shown)
    assert {"environment", "address", *serves} == set(shown)
    made = ServeOptions(environment=Catch)
    defaults = {name: shown[name].default for name in fields}
    assert defaults == {name: getattr(made, name) for name in fields} | {
        "environment": inspect.Parameter.empty
    }
    assert set(attribute_texts(ServeOptions)) == set(fields)
