"""Messages that would take far more memory than they have bytes, as requests and as answers.

They are put together as bytes, since protobuf would need the memory to make them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dm_env_rpc_client import dm_env_rpc_pb2, pack_tensor, properties_pb2
from dm_env_rpc_client.tensors.codecs import varint

Tensor = dm_env_rpc_pb2.Tensor
TensorSpec = dm_env_rpc_pb2.TensorSpec

BROADCASTS = 64
BIG_SHAPE = [1 << 21]


def _field(number: int, *contents: bytes) -> bytes:
    """A field of a message that holds a message, a string or bytes."""
    content = b"".join(contents)
    return varint(number << 3 | 2) + varint(len(content)) + content


def _response(name: str, *contents: bytes) -> bytes:
    number = dm_env_rpc_pb2.EnvironmentResponse.DESCRIPTOR.fields_by_name[name].number
    return _field(number, *contents)


def _request(name: str, *contents: bytes) -> bytes:
    number = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields_by_name[name].number
    return _field(number, *contents)


_stepped = functools.partial(_response, "step", b"\x08\x01")
_refused = functools.partial(_response, "error", b"\x08\x05")


def _observed(uid: int, tensor: bytes) -> bytes:
    """An observation, or its spec."""
    return _field(2, b"\x08", varint(uid), _field(2, tensor))


def _joined(*specs: bytes) -> bytes:
    return _response("join_world", _field(1, *specs))


def _setting(name: bytes, tensor: bytes) -> bytes:
    return _field(1, _field(1, name), _field(2, tensor))


def _payload(name: str, elements: bytes) -> bytes:
    return _field(Tensor.DESCRIPTOR.fields_by_name[name].number, elements)


def _any_length(name: str, elements: bytes) -> bytes:
    return _payload(name, elements) + _field(15, varint(-1 & 0xFFFFFFFF))


def _empty(name: str, size: int) -> bytes:
    """A tensor of strings or messages that are all empty: two bytes each."""
    return _any_length(name, b"\x0a\x00" * (size // 2))


def _one_for_all(value: float) -> bytes:
    tensor = pack_tensor(np.float64(value))
    tensor.shape.extend(BIG_SHAPE)
    return tensor.SerializeToString()


def _many_entries(number: int, count: int) -> bytes:
    """Entries of a map with distinct keys from 2**14 on, without values: six bytes each.

    Their keys have three bytes each, so that NumPy can write them.
    """
    assert count <= (1 << 21) - (1 << 14)
    keys = np.arange(1 << 14, (1 << 14) + count, dtype=np.uint32)
    block = np.empty((count, 6), np.uint8)
    block[:, 0] = number << 3 | 2
    block[:, 1] = 4
    block[:, 2] = 0x08
    block[:, 3] = keys & 0x7F | 0x80
    block[:, 4] = keys >> 7 & 0x7F | 0x80
    block[:, 5] = keys >> 14
    return block.tobytes()


def _many_settings(count: int) -> bytes:
    tensor = _payload("int8s", b"\x0a\x01\x00")
    return b"".join(_setting(b"%x" % number, tensor) for number in range(count))


def specs() -> dm_env_rpc_pb2.ActionObservationSpecs:
    """The specs of the agent that gets the answers to steps."""
    observations = {
        uid: TensorSpec(name=f"wide{uid}", dtype=dm_env_rpc_pb2.DOUBLE, shape=BIG_SHAPE)
        for uid in range(1, BROADCASTS + 1)
    }
    observations[100] = TensorSpec(name="texts", dtype=dm_env_rpc_pb2.STRING, shape=[-1])
    observations[101] = TensorSpec(name="protos", dtype=dm_env_rpc_pb2.PROTO, shape=[-1])
    observations[102] = TensorSpec(name="numbers", dtype=dm_env_rpc_pb2.INT64, shape=[-1])
    return dm_env_rpc_pb2.ActionObservationSpecs(observations=observations)


_WIDE = _one_for_all(1.5)
_SPEC = TensorSpec(dtype=dm_env_rpc_pb2.FLOAT).SerializeToString()
_ANSWERS: dict[str, Callable[[int], bytes]] = {
    "64 observations of one element each": lambda scale: _stepped(
        *(_observed(uid, _WIDE) for uid in range(1, BROADCASTS + 1))
    ),
    "16 MB of empty Any": lambda scale: _stepped(
        _observed(101, _empty("protos", 16_000_000 // scale))
    ),
    "many small observations of empty Any": lambda scale: _stepped(
        *[_observed(101, _empty("protos", 60_000))] * (256 // scale)
    ),
    "126 MB of empty strings": lambda scale: _stepped(
        _observed(100, _empty("strings", 126_000_000 // scale))
    ),
    "126 MB of strings that are newlines": lambda scale: _stepped(
        _observed(100, _any_length("strings", b"\x0a\x02\x0a\x0a" * (31_500_000 // scale)))
    ),
    "32 MB of one-byte integers": lambda scale: _stepped(
        _observed(102, _any_length("int64s", _field(1, bytes(32 << 20))))
    ),
    "1.9 million unrequested entries": lambda scale: _stepped(_many_entries(2, 1_900_000 // scale)),
    "32 million states": lambda scale: _stepped(b"\x08\x01" * (32_000_000 // scale)),
    "100,000 specs": lambda scale: _joined(
        *(_observed(uid, _SPEC + _field(1, b"o%d" % uid)) for uid in range(1, 100_000 // scale))
    ),
    "a spec with a name of 100 MB": lambda scale: _joined(
        _observed(1, _SPEC + _field(1, b"a" * (100_000_000 // scale)))
    ),
    "a world name of 100 MB": lambda scale: _response(
        "create_world", _field(1, b"w" * (100_000_000 // scale))
    ),
    "8 MB of empty error details": lambda scale: _refused(b"\x1a\x00" * (4_000_000 // scale)),
    "an error detail of 8 MB": lambda scale: _refused(
        _field(3, _field(2, bytes(8_000_000 // scale)))
    ),
    "an error text of 100 MB": lambda scale: _refused(_field(2, b"e" * (100_000_000 // scale))),
    "unknown fields": lambda scale: _stepped(b"\x78\x01" * (16_000_000 // scale)),
}


def answers(scale: int) -> dict[str, Callable[[], bytes]]:
    """What makes answers, by name; an error answers a step.

    Args:
      scale: what the sizes of the large ones are divided by.
    """
    return {name: functools.partial(make, scale) for name, make in _ANSWERS.items()}


def requests(scale: int) -> dict[str, Callable[[], bytes]]:
    """What makes requests, by name; those that are named "step" belong to a joined agent.

    Args:
      scale: what the sizes of the large ones are divided by.
    """

    def name() -> bytes:
        return b"n" * (100_000_000 // scale)

    listing = properties_pb2.PropertyRequest(list_property={"key": "k"}).SerializeToString()
    url = b"type.googleapis.com/" + properties_pb2.PropertyRequest.DESCRIPTOR.full_name.encode()
    return {
        "64 settings of one element each": lambda: _request(
            "create_world", *(_setting(b"s%d" % number, _WIDE) for number in range(64))
        ),
        "16 MB of empty Any": lambda: _request(
            "create_world", _setting(b"s", _empty("protos", 16_000_000 // scale))
        ),
        "126 MB of empty strings": lambda: _request(
            "create_world", _setting(b"s", _empty("strings", 126_000_000 // scale))
        ),
        "100,000 settings": lambda: _request("create_world", _many_settings(100_000)),
        "a setting with a name of 100 MB": lambda: _request(
            "create_world", _setting(name(), _WIDE)
        ),
        "a world name of 100 MB": lambda: _request("join_world", _field(1, name())),
        "a world name of 100 MB to reset": lambda: _request("reset_world", _field(1, name())),
        "a world name of 100 MB to destroy": lambda: _request("destroy_world", _field(1, name())),
        "step: 1.9 million actions": lambda: _request("step", _many_entries(1, 1_900_000 // scale)),
        "step: 8 million requested": lambda: _request(
            "step", _field(2, b"\x81\x82\x01\x82\x83\x02" * (4_000_000 // scale))
        ),
        "an extension of many fields": lambda: _request(
            "extension", _field(1, url), _field(2, listing, b"\x78\x01" * (16_000_000 // scale))
        ),
    }
