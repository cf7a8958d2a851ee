"""Properties of the one-file server have values of every dtype, and specs that fit them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2, wrappers_pb2

from dm_env_rpc_client import make
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import Message, Server
from tests.support.environments import Echo

_SECONDS = wrappers_pb2.DoubleValue(value=1.5)
_ANY = any_pb2.Any()
_ANY.Pack(_SECONDS)
_MESSAGE = Message(_ANY.type_url, _ANY.value)


def _messages(*messages: Message) -> Any:
    array = np.empty(len(messages), object)
    for index, message in enumerate(messages):
        array[index] = message
    return array


VALUES: dict[str, tuple[Any, type, Any]] = {
    "bool": (True, np.bool_, True),
    "int16": (np.int16(-3), np.int32, -3),
    "int": (1 << 40, np.int64, 1 << 40),
    "float16": (np.float16(0.5), np.float32, 0.5),
    "float": (0.1, np.float64, 0.1),
    "array": (np.arange(6, dtype=np.uint8).reshape(2, 3), np.uint8, None),
    "string": ("näm", str, "näm"),
    "strings": (np.array(["a", "bc"]), str, None),
    "message": (_MESSAGE, object, _ANY),
    "messages": (_messages(_MESSAGE, _MESSAGE), object, [_ANY, _ANY]),
}
"""What a getter returns, the dtype of its spec, and what a client reads; None for the same."""


class _Valued(Echo):
    properties: dict[str, Any] = {  # noqa: RUF012
        name: lambda value=value: value for name, (value, _, _) in VALUES.items()
    }


@pytest.fixture(scope="module")
def properties() -> Iterator[PropertiesExtension]:
    with Server(_Valued) as server, make(server.address) as env:
        yield PropertiesExtension(env.connection)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_dtype_is_read_and_its_spec_fits(
    properties: PropertiesExtension, name: str
) -> None:
    value, dtype, read = VALUES[name]
    found, expected = properties.read(name), value if read is None else read
    np.testing.assert_array_equal(found, expected)
    (spec,) = (found.spec for found in properties.list() if found.key == name)
    assert spec is not None
    assert isinstance(spec, specs.StringArray) == (dtype is str)
    assert dtype is str or spec.dtype == dtype
    assert tuple(spec.shape) == np.shape(found) == np.shape(expected)
