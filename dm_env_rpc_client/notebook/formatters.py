"""IPython formatters for the TimeSteps and specs of dm_env, and for dictionaries of specs.

These classes are part of another library and have no display methods, so the formatters are added
to IPython's table of formatters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
from dm_env import specs

from dm_env_rpc_client.tensors.displays.spec_tables import are_specs, spec_table
from dm_env_rpc_client.tensors.displays.values import show_timestep

_HTML = "text/html"


def load_ipython_extension(ipython: Any) -> None:
    """Add the formatters to the IPython shell, for `%load_ext dm_env_rpc_client.notebook`."""
    formatter = ipython.display_formatter.formatters[_HTML]
    for shown, show in _FORMATTERS.items():
        formatter.for_type(shown, show)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the formatters from IPython, for `%unload_ext dm_env_rpc_client.notebook`."""
    formatter = ipython.display_formatter.formatters[_HTML]
    for shown in _FORMATTERS:
        formatter.pop(shown, None)


def _show_dict(value: dict[Any, Any]) -> str | None:
    """Return specs as a table, or None for other dictionaries, which IPython shows as text."""
    return spec_table(value) if are_specs(value) else None


_FORMATTERS: dict[type, Callable[[Any], str | None]] = {
    dm_env.TimeStep: show_timestep,
    specs.Array: spec_table,
    dict: _show_dict,
}
