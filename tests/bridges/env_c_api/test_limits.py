"""`limits=` of an environment: what is copied from the memory of a library, here and in a child."""

from __future__ import annotations

from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api import environment_factory
from dm_env_rpc_client.errors import LibraryError, ProtocolError
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.env_c_api.conftest import MakeEnvironment

CAMERA_BYTES = 72 * 96 * 3


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            {"message_bytes": CAMERA_BYTES - 1},
            r"\[72, 96, 3\] takes 20736 bytes; at most 20735 are allowed \(Limits\.message_bytes\)",
        ),
        (
            {"message_bytes": CAMERA_BYTES},
            r"the observations together take 207\d\d bytes; at most 20736 are allowed",
        ),
        ({"specs": 1}, r"action_discrete_count is 2; expected 0 to 1 \(Limits\.specs\)"),
        ({"name_bytes": 4}, r"action_discrete_name of 0 does not end within 4 bytes \(Limits\)"),
    ],
)
def test_a_library_beyond_the_limits_is_not_opened(
    make: MakeEnvironment, isolated: bool, limit: dict[str, int], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        make(isolated=isolated, limits=Limits(**limit))


def test_observations_whose_size_changes_share_what_is_left(
    make: MakeEnvironment, isolated: bool
) -> None:
    env = make(isolated=isolated)
    assert env._runner is not None
    fixed = env._runner.description.fixed_bytes
    assert make(isolated=isolated, limits=Limits(message_bytes=fixed + 1000)).reset().first()
    with pytest.raises(ProtocolError, match=r"with the earlier values, this exceeds .*Limits"):
        make(isolated=isolated, limits=Limits(message_bytes=fixed)).reset()


def test_properties_beyond_the_limits(make: MakeEnvironment, isolated: bool) -> None:
    def limited(**limit: int) -> Any:
        return make(isolated=isolated, settings={"world.title": "x" * 40}, limits=Limits(**limit))

    with pytest.raises(ProtocolError, match="value of property 'title' does not end within 39"):
        limited(text_bytes=39).read_property("title")
    assert limited(text_bytes=40).read_property("title") == "x" * 40
    count = len(limited().list_properties(recursive=True))
    most = rf"more than {count - 1} properties below '' \(Limits\.specs\)"
    with pytest.raises(ProtocolError, match=most):
        limited(specs=count - 1).list_properties(recursive=True)
    with pytest.raises(ProtocolError, match=r"more than 1 levels .* \(Limits\.nesting\)"):
        limited(nesting=1).list_properties(recursive=True)
    assert len(limited(nesting=2, specs=count).list_properties(recursive=True)) == count


def test_the_message_of_an_error_is_cut_off(make: MakeEnvironment, isolated: bool) -> None:
    with pytest.raises(LibraryError, match=r"code 7: init wa\.\.\. \(more than 7 bytes\)"):
        make(isolated=isolated, settings={"fail_init": True}, limits=Limits(error_bytes=7))


def test_a_factory_for_a_server_takes_limits() -> None:
    path = compile_library("complete", "1.4")
    factory = environment_factory(path, "complete_connect", limits=Limits(specs=1))
    with pytest.raises(ProtocolError, match=r"Limits\.specs"):
        factory()
