"""The environment of `dm-env-rpc play`: steps it, counts, and asks for what it renders.

Its methods wait for the server; `app` calls them in another thread, one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.cli.playing.pictures import picture_for
from dm_env_rpc_client.cli.stepping.watch import Watch
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.many.one_row import OneRow, num_envs_of
from dm_env_rpc_client.errors import DmEnvRpcError, SpecError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.tensors import nesting
from dm_env_rpc_client.tensors.displays.progress import Progress

_GYMNASIUM = "gymnasium"
_VECTOR = "gymnasium.vector"
_FRAME = "gymnasium.frame"
"""Of a served Gymnasium environment: see `adaptors.gymnasium.to_dm_env`. Of a vector environment
frames have a row for each environment."""

_LEAST_SIDE = 32
"""An observation with fewer rows or columns, such as a grid of codes, replaces no frame."""


class Player:
    """Plays an environment.

    Args:
      env: the environment.
      has_properties: whether the server answers requests for properties. One that knows none may
        end the connection at such a request.
      watch: finds out what a step waits for.
      row: the row of a batched world that is played; all rows take the same actions.

    Attributes:
      rows: the row and how many there are; None if the world is not batched.
      progress: the episodes so far.
      observations: of the last TimeStep, by flat name.
      observation_specs: by flat name.
      frame: what the environment renders, if no observation is a picture of some size; None
        otherwise.
    """

    def __init__(self, env: DmEnvAdaptor, has_properties: bool, watch: Watch, row: int = 0):
        self._env: DmEnvAdaptor | OneRow = env
        self._connection = env.connection
        self.rows: tuple[int, int] | None = None
        if num_envs_of(env) is not None:
            self._env = OneRow(env, row)
            self.rows = row, self._env.num_envs
        elif row:
            raise SpecError(f"there is no row {row}: world {env.world_name!r} is not batched")
        self._watch = watch
        self._properties = PropertiesExtension(env.connection) if has_properties else None
        self._renders: bool | None = None
        self.progress = Progress()
        self.observations: Mapping[str, Any] = {}
        self.observation_specs: Mapping[str, specs.Array] = _flat(self._env.observation_spec())
        self.frame: Any = None

    @property
    def action_spec(self) -> Mapping[str, Any]:
        """The specs of actions; a reset may change them."""
        spec: Mapping[str, Any] = self._env.action_spec()
        return spec

    @property
    def waiting_for(self) -> str:
        """What a step waits for; "" if that is not known."""
        return self._watch.waiting_for

    def begin(self) -> None:
        """Begins an episode.

        Raises:
          As `DmEnvAdaptor.reset`.
        """
        settings: dict[str, Any] = {}
        if self._renders is None:
            self._renders, settings = self._ask_to_render()
        with self._watch.step():
            try:
                timestep = self._env.reset(settings)
            except DmEnvRpcError:
                if not settings:
                    raise
                self._renders = False
                timestep = self._env.reset({})
        self.observation_specs = _flat(self._env.observation_spec())
        self._record(None, timestep)

    def step(self, action: Mapping[str, Any]) -> None:
        """Takes a step, or begins an episode after the end of one.

        Raises:
          As `DmEnvAdaptor.step`.
        """
        with self._watch.step():
            timestep = self._env.step(action)
        self._record(action, timestep)

    def quit(self) -> None:
        """Ends a call in the other thread; the environment is to be closed then."""
        self._connection.close()

    def summary(self) -> str:
        """Returns how the game went, as a line."""
        count, steps = self.progress.finished, self.progress.total_steps
        text = f"{count} episode{'' if count == 1 else 's'} finished"
        if count:
            text += f", the last with return {self.progress.returns[-1]:g}"
        return f"{text}; {steps} step{'' if steps == 1 else 's'}"

    def _record(self, action: Any, timestep: dm_env.TimeStep) -> None:
        self.observations = _flat(timestep.observation)
        if timestep.first():
            self.progress.begin(timestep)
        else:
            self.progress.advance(action, timestep)
        if self._renders:
            frame = self._read(_FRAME)
            if self.rows is not None and isinstance(frame, np.ndarray):
                frame = frame[self.rows[0]]
            self.frame = frame if isinstance(frame, np.ndarray) else None

    def _ask_to_render(self) -> tuple[bool, dict[str, Any]]:
        """Returns whether there are frames, and the settings of a reset that this takes."""
        for spec in self.observation_specs.values():
            if spec.dtype.kind in "biuf" and min(spec.shape, default=1) >= 0:
                picture = picture_for(spec.generate_value(), spec)
                if picture is not None and min(picture.pixels.shape[:2]) >= _LEAST_SIDE:
                    return False, {}
        try:
            key = _GYMNASIUM if self.rows is None else _VECTOR
            described = json.loads(self._read(key))
        except (TypeError, ValueError, RecursionError):
            return False, {}  # There is no such property, or it is something else.
        match described:
            case {"render_mode": str()}:
                return True, {}
            case {"metadata": {"render_modes": [*modes]}} if (
                "rgb_array" in modes and self.rows is None
            ):
                return True, {"render_mode": "rgb_array"}
        return False, {}

    def _read(self, key: str) -> Any:
        """Returns a property; None if there is none."""
        if self._properties is None:
            return None
        try:
            return self._properties.read(key)
        except DmEnvRpcError:
            return None


def _flat(structure: Mapping[str, Any]) -> dict[str, Any]:
    return nesting.flatten_dict(structure, nesting.SEPARATOR, strict=False)
