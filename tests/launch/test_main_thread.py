"""Servers that are started have their environments in the main thread if they are told so."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dm_env_rpc_client import SpecError, make
from dm_env_rpc_client.launch import from_python

IDENT = "tests.server.one_thread:Ident"


@pytest.mark.parametrize("python", [None, sys.executable])
@pytest.mark.parametrize("thread", [None, "main"])
def test_from_python(python: Any, thread: Any) -> None:
    with from_python(IDENT, python=python, thread=thread) as launch:
        for _ in range(2):
            with make(launch.address) as env:
                assert env.reset().observation["is_main"] == (thread == "main")
                assert env.step({"do": 0}).observation["is_main"] == (thread == "main")
        env = make(launch.address)
        env.reset()
    assert launch.exit_code == 0
    assert launch.logs().count("closed in its thread: True") == 3


def test_the_text_of_an_address() -> None:
    with make(f"python:{IDENT} --thread main") as env:
        assert env.reset().observation["is_main"]
    with pytest.raises(SpecError, match=r"--thread main is allowed after python:.*, got '--th"):
        make(f"python:{IDENT} --thread other")
