"""Settings become strings."""

from __future__ import annotations

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api.description import text_settings
from dm_env_rpc_client.errors import SpecError


def test_settings_are_strings() -> None:
    settings = {"a": True, "b": {"c": 1, "d": 0.1}, "e": "text", "f": np.float32(0.5)}
    expected = {"a": "true", "b.c": "1", "b.d": "0.1", "e": "text", "f": "0.5"}
    assert text_settings(settings) == expected
    assert text_settings({"a": np.False_}) == {"a": "false"}
    with pytest.raises(SpecError, match=r"setting 'b\.c' is of type bytes; expected a str"):
        text_settings({"b": {"c": b"1"}})
