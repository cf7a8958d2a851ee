"""Creating, joining and destroying worlds."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    DmEnvAdaptor,
    DmEnvRpcError,
    make,
    pack_tensor,
)
from dm_env_rpc_client.server import Server, serve
from tests.support.environments import Robot


@pytest.mark.parametrize(
    "settings",
    [
        {"joints": 2, "camera": {"height": 7}},
        {"joints": 2, "camera.height": 7},
        {"joints": np.int8(2), "camera": {"height": pack_tensor(7, np.int32)}},
    ],
)
def test_settings_are_nested_or_flat_values_or_tensors(settings: dict[str, Any]) -> None:
    with serve(Robot) as server, make(server.address, settings) as env:
        assert env.action_spec()["arm"]["torque"].shape == (2,)
        assert env.observation_spec()["camera"]["rgb"].shape == (7, 5, 3)


def test_an_adaptor_class_may_take_keywords_of_its_own(catch_server: Server) -> None:
    class Repeating(DmEnvAdaptor):
        def __init__(self, *args: Any, repeats: int = 1, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.repeats = repeats

    # For type checkers these are keywords of nobody; a dictionary says that they are meant.
    own: dict[str, Any] = {"repeats": 3}
    with make(catch_server.address, adaptor_class=Repeating, **own) as env:
        assert isinstance(env, Repeating)
        assert env.repeats == 3


@pytest.mark.parametrize("send_tracebacks", [True, False])
def test_the_traceback_of_an_environment_is_a_note_of_the_error(send_tracebacks: bool) -> None:
    class Broken(Robot):
        def reset(self) -> Any:
            raise ZeroDivisionError("no motor")

    with (
        serve(Broken, send_tracebacks=send_tracebacks) as server,
        make(server.address) as env,
        pytest.raises(DmEnvRpcError, match="no motor") as caught,
    ):
        env.reset()
    printed = "".join(traceback.format_exception(caught.value))
    assert ('raise ZeroDivisionError("no motor")' in printed) is send_tracebacks
    assert ("On the server:" in printed) is send_tracebacks
    copied = pickle.loads(pickle.dumps(caught.value))
    assert "".join(traceback.format_exception_only(copied)) in printed
