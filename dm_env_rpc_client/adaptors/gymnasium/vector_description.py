"""The properties of a batch of Gymnasium environments: its description and its rendered frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.info_observation import INFOS
from dm_env_rpc_client.tensors import bounded_parsing

VECTOR_DESCRIPTION = "gymnasium.vector"
"""The key of the property that contains the spaces of one row and the metadata as JSON."""

_FRAME = "gymnasium.frame"


def checked_mode(autoreset_mode: AutoresetMode | str | None) -> AutoresetMode | None:
    """Convert `autoreset_mode` to an AutoresetMode unless it is None, or raise SpecError."""
    if autoreset_mode is None:
        return None
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        modes = ", ".join(f"{mode} ({mode.value!r})" for mode in AutoresetMode)
        raise arguments.refused(
            "autoreset_mode", f"one of {modes}", autoreset_mode, "None for the server's mode"
        ) from None


def describe_vector(
    env: Any,
    count: int,
    mode: AutoresetMode,
    spaces_json: Mapping[str, Any],
    notes: Sequence[str],
    forms: Sequence[str],
) -> str:
    """Return the value of the property `VECTOR_DESCRIPTION`, a JSON string.

    Args:
      env: a vector environment, or the environment of one row.
      count: the number of rows.
      mode: the autoreset mode.
      spaces_json: the JSON of `action_space` and `observation_space` of one row.
      notes: notes on replaced spaces.
      forms: the strings that the setting `infos` accepts.
    """
    # EnvPool has a `spec` of another type.
    spec = getattr(env, "spec", None)
    spec = spec if isinstance(spec, EnvSpec) else None
    metadata = dict(getattr(env, "metadata", None) or {})
    metadata.pop("autoreset_mode", None)
    description = {
        "version": value_json.VERSION,
        **spaces_json,
        "num_envs": count,
        "autoreset_mode": mode.value,
        "metadata": value_json.to_jsonable(metadata, where="metadata"),
        "render_mode": getattr(env, "render_mode", None),
        "max_episode_steps": None if spec is None else spec.max_episode_steps,
        "id": "" if spec is None else spec.id,
        "notes": notes,
        INFOS: list(forms),
    }
    return bounded_parsing.encode(description, VECTOR_DESCRIPTION).decode("ascii")


def encoded_frames(render: Callable[[], Any]) -> Mapping[str, Callable[[], Any]]:
    """Return a property with the frames of all rows: an array [N, ...], or a tuple as JSON.

    Args:
      render: returns the frames of all rows, as a sequence or an array, or None if there are none.
    """

    def read() -> Any:
        rendered = render()
        if isinstance(rendered, np.ndarray):
            return rendered
        frames = tuple(rendered or ())
        kinds = {(frame.shape, frame.dtype) for frame in frames if isinstance(frame, np.ndarray)}
        if len(kinds) == 1 and all(isinstance(frame, np.ndarray) for frame in frames):
            return np.stack(frames)
        return value_json.encode(frames, where="frames")

    return {_FRAME: read}
