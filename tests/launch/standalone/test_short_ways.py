"""The server in one file reads most steps in a short way, to the same values as in the long one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    pack_tensor,
    unpack_tensor,
)
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file


class Limited:
    """Takes actions up to a limit, which is a setting of resets."""

    reset_settings = ("limit",)

    def __init__(self, limit: int = 5):
        self._limit = limit

    def configure(self, settings: dict[str, Any]) -> None:
        self._limit = settings["limit"]

    def action_spec(self) -> Any:
        return one_file.BoundedArray((), np.int32, 0, self._limit)

    def observation_spec(self) -> Any:
        return {"action": one_file.Array((), np.int32)}

    def reset(self) -> Any:
        return one_file.TimeStep(one_file.FIRST, None, None, {"action": np.int32(-1)})

    def step(self, action: Any) -> Any:
        return one_file.TimeStep(one_file.MID, 1.0, 1.0, {"action": action})


def step(connection: Connection, action: int) -> int:
    actions = {1: pack_tensor(np.int32(action))}
    request = dm_env_rpc_pb2.StepRequest(actions=actions, requested_observations=[1])
    return int(unpack_tensor(connection.send(request).observations[1]))


def test_a_step_that_was_read_before_is_read_again_where_the_specs_are_others() -> None:
    with one_file.serve(Limited, "localhost:0") as server, connect(server.address) as connection:
        for limit in (5, 3, 5):
            world = create_world(connection, {"limit": limit})
            with join_world(connection, world) as env:
                env.reset()
                assert [step(connection, each) for each in (3, 2, 3)] == [3, 2, 3]
                if limit == 5:
                    assert step(connection, 4) == 4
                    env.reset({"limit": 3})
                with pytest.raises(DmEnvRpcError, match=r"4, outside its bounds \[0, 3\]"):
                    step(connection, 4)
            with pytest.raises(DmEnvRpcError, match="a step request is not allowed"):
                step(connection, 3)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i4", "i8", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (300,)], ids=str)
def test_a_tensor_is_the_same_read_the_short_and_the_long_way(
    dtype: str, shape: tuple[int, ...]
) -> None:
    chance = random.Random(5)
    spec = one_file.Array(shape, dtype)
    short, long = (one_file._Field(1, "a", spec, "action") for _ in range(2))
    long._payload = b""
    written = one_file._write_tensor(short.kind, np.ones(shape, dtype))
    assert (short._read_block(written) is not None) == (dtype in ("f4", "f8", "i1", "u1"))
    read = [0, 0]
    for _ in range(600):
        mutated = bytearray(written)
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(mutated))
            mutated[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            mutated = mutated or bytearray(b"\x00")
        found: list[tuple[Any, ...]] = []
        for field in (short, long):
            try:
                value = field.read(bytes(mutated), dict(one_file.LIMITS))
                found.append((value.dtype, value.shape, value.tobytes()))
                assert value.shape == () or value.flags.writeable
            except (one_file.Refusal, one_file._Malformed) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1], bytes(mutated)
        read[len(found[0]) == 3] += 1
    assert all(read)
