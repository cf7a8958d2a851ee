"""What TimeSteps take while they are exported: libraries take many times their size."""

from __future__ import annotations

import math

from dm_env import specs

from dm_env_rpc_client.errors import RecordingError
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.recording.episode import TIMESTEP_BYTES, Episode, size_of
from dm_env_rpc_client.tensors.limits import Limits

TIMESTEP_PART = 16
"""A TimeStep may take `Limits.chunk_bytes` divided by this: for each byte of an image,
pyarrow takes 25 to write Parquet, and Minari 20."""


def is_list(spec: specs.Array) -> bool:
    """Whether values of a spec that are not scalars are exported as lists, not as tensors."""
    return isinstance(spec, specs.StringArray) or min(spec.shape, default=1) < 1


def exported_sizes(episode: Episode, limits: Limits) -> list[int]:
    """Returns about how many bytes each TimeStep takes; RecordingError if one takes too many."""
    sizes = [_size(episode, index) for index in range(len(episode))]
    most = limits.chunk_bytes // TIMESTEP_PART
    if max(sizes, default=0) > most:
        index = sizes.index(max(sizes))
        raise RecordingError(
            f"TimeStep {index} of episode {episode.number} takes about {sizes[index]} bytes where "
            f"it is exported; at most {most} are allowed, 1/{TIMESTEP_PART} of Limits.chunk_bytes"
        )
    return sizes


def _size(episode: Episode, index: int) -> int:
    step, action = episode.flat_timesteps[index], episode.flat_actions[index]
    values = {**step.observation, REWARD: step.reward, DISCOUNT: step.discount}
    return TIMESTEP_BYTES + sum(
        # Lists are made of objects; a tensor that is missing takes as much as another.
        2 * size_of(given.get(name))
        if is_list(spec)
        else max(size_of(given.get(name)), spec.dtype.itemsize * math.prod(spec.shape))
        for specs_by_name, given in (
            (episode.observation_specs, values),
            (episode.action_specs, action),
        )
        for name, spec in specs_by_name.items()
    )
