"""The one table of options: Python, `dm-env-rpc check` and pytest take the same values."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any

import pytest

from dm_env_rpc_client.cli.check import check
from dm_env_rpc_client.compliance import Options
from dm_env_rpc_client.compliance.options import FLAGS, Kind
from dm_env_rpc_client.testing import pytest_plugin


class RecordingGroup(dict[str, Any]):
    """The options that a plugin adds to pytest."""

    def getgroup(self, name: str, description: str) -> RecordingGroup:
        return self

    def addoption(self, name: str, **details: Any) -> None:
        self[name] = details


def test_every_field_is_a_flag_of_the_command_and_an_option_of_pytest() -> None:
    assert list(FLAGS) == [field.name for field in dataclasses.fields(Options)]
    of_command = inspect.signature(check).parameters
    pytest_plugin.pytest_addoption(of_pytest := RecordingGroup())  # type: ignore[arg-type]
    for field, flag in FLAGS.items():
        (option,) = of_command[field].annotation.__metadata__
        declared = [
            name for names in (option.default, *option.param_decls) for name in names.split("/")
        ]
        assert f"--{flag.name}" in declared
        assert (f"--{flag.opposite}" in declared) == (flag.kind is Kind.YES_OR_NO)
        assert option.help == flag.usage()
        assert of_pytest[f"--dm-env-rpc-{flag.name}"]["help"] == flag.usage()
    assert set(of_command) - set(FLAGS) == {"address", "only", "as_json"}
    assert len(of_pytest) - len(FLAGS) == len(["address", "command"])


def test_flags_that_were_not_given_leave_the_defaults() -> None:
    assert Options.from_flags({}) == Options()
    assert Options.from_flags(dict.fromkeys(FLAGS)) == Options()
    assert Options.from_flags({"several_worlds": "no"}) == Options(several_worlds=False)


@pytest.mark.skipif(sys.flags.optimize > 1, reason="without docstrings")
def test_the_docstring_explains_every_field() -> None:
    assert all(flag.help.endswith(".") for flag in FLAGS.values())
