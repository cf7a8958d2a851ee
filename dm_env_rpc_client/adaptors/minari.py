"""Export of episodes as a Minari data set. This module requires the `minari` extra."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium.info_observation import EXTRAS, OF_AGENTS
from dm_env_rpc_client.adaptors.gymnasium.spaces import Room, spec_to_space, to_space_array
from dm_env_rpc_client.errors import RecordingError, SpecError
from dm_env_rpc_client.extras import importing
from dm_env_rpc_client.recording.episodes import Episode, all_episodes
from dm_env_rpc_client.recording.reader import Scan
from dm_env_rpc_client.recording.rows import size_of_step
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits

with importing("minari", "Minari, for Python from 3.11 on, needs"):
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import NAMESPACE_METADATA_FILENAME
    from minari.storage import get_dataset_path

_TIMESTEP_PART = 16
"""The maximum size of a TimeStep is `Limits.chunk_bytes` divided by this number. Minari uses 20
bytes of memory per byte of a TimeStep."""


def export_minari(
    path: str | os.PathLike[str],
    dataset_id: str,
    *,
    limits: Limits = DEFAULT,
    on_episode: Callable[[Episode], object] | None = None,
) -> int:
    """Create a Minari data set from the episodes of a recording.

    Observations and actions are dicts by flat name. A single observation or action is not wrapped
    in a dict. The spaces of observations and actions are those of `adaptors.gymnasium.spaces`, as
    for a remote environment. Infos are left out. An episode is terminated or truncated at its last
    step; an episode abandoned by the agent, or incomplete in the recording, is truncated. Episodes
    with only one TimeStep are omitted. All other episodes are in memory at the same time, as Minari
    requires.

    Args:
      path: the recording.
      dataset_id: the id of the new data set, such as "catch/run-v0".
      limits: as for `recording.read`; all TimeSteps are in memory at the same time, and each may
        take up to a sixteenth of `chunk_bytes`.
      on_episode: called with each episode.

    Returns:
      The number of episodes.

    Raises:
      RecordingError: the recording cannot be read or has no episodes; its episodes have different
        specs, no actions or no observations; Minari has no space for an observation or action
        (strings, messages, variable length, no elements); a reward is not a number; a TimeStep
        exceeds the limits; the data set exists; or Minari cannot write it. No part of the data set
        is left.
    """
    arguments.text("dataset_id", dataset_id, expected="a text such as 'catch/run-v0'")
    arguments.function("on_episode", on_episode, none="None")
    _check_id(dataset_id)
    buffers: list[EpisodeBuffer] = []
    first: Episode | None = None
    space_of: dict[str, spaces.Space[Any]] = {}
    for episode in map(_without_infos, all_episodes(Scan(path, limits))):
        if len(episode) < 2:
            continue
        # The buffers hold copies, so `first` must not keep the arrays alive as well.
        first = first or dataclasses.replace(
            episode, flat_timesteps=episode.flat_timesteps[:1], flat_actions=[]
        )
        if not (
            _same(first.observation_specs, episode.observation_specs)
            and _same(first.action_specs, episode.action_specs)
        ):
            raise RecordingError(
                f"the action or observation specs of episode {episode.number} of {path} differ "
                "from those of earlier episodes; all episodes in a data set must have the same "
                "specs"
            )
        # Before the values, because NumPy cannot stack arrays of variable length.
        space_of = space_of or _spaces(path, first)
        _check_sizes(episode, limits)
        try:
            buffers.append(_buffer(len(buffers), episode, space_of))
        except SpecError as error:
            raise RecordingError(f"cannot export to Minari: {error}") from error
        if on_episode is not None:
            on_episode(episode)
        del episode
    if first is None:
        raise RecordingError(f"{path} has no episodes to export")
    with _made_whole(dataset_id), warnings.catch_warnings():
        # Minari recommends metadata, such as an author, that a recording does not have.
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            **space_of,
            description="A recording of dm-env-rpc-client",
            data_format="arrow",
            jpeg_encoding=False,
        )
    return len(buffers)


def _without_infos(episode: Episode) -> Episode:
    """Return an episode without the texts in which servers of this package send infos."""
    found = episode.observation_specs
    texts = {name: specs.StringArray((), name=name) for name in (EXTRAS, OF_AGENTS)}
    infos = {name for name, text in texts.items() if found.get(name) == text}
    if not infos:
        return episode

    def rest(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in infos}

    steps = [each._replace(observation=rest(each.observation)) for each in episode.flat_timesteps]
    return dataclasses.replace(episode, observation_specs=rest(found), flat_timesteps=steps)


def _check_id(dataset_id: str) -> None:
    """Raise RecordingError if an id is invalid for Minari or already in use."""
    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:  # TypeError for an id without a version.
        raise RecordingError(f"cannot export to Minari: {error}") from error
    if get_dataset_path(dataset_id).exists():
        raise RecordingError(
            f"cannot export to Minari: the data set {dataset_id!r} already exists; choose another "
            "name or version"
        )


def _check_sizes(episode: Episode, limits: Limits) -> None:
    """Raise RecordingError for a TimeStep that needs too much memory for an export to Minari."""
    most = limits.chunk_bytes // _TIMESTEP_PART
    for index, step in enumerate(episode.flat_timesteps):
        values = [*step.observation.values(), *episode.flat_actions[index].values()]
        size = size_of_step(step.reward, step.discount, *values)
        if size > most:
            raise RecordingError(
                f"TimeStep {index} of episode {episode.number} requires about {size} bytes "
                f"during the export, but at most {most} are allowed (1/{_TIMESTEP_PART} of "
                "Limits.chunk_bytes)"
            )


@contextlib.contextmanager
def _made_whole(dataset_id: str) -> Iterator[None]:
    """Return a context that, on failure, removes the data set and raises RecordingError."""
    path, root = get_dataset_path(dataset_id), get_dataset_path()
    namespaces = []
    for parent in path.parents:
        if parent == root or parent.exists():
            break
        namespaces.append(parent)
    try:
        yield
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        for parent in namespaces:
            (parent / NAMESPACE_METADATA_FILENAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # Another data set may be there by now.
                parent.rmdir()
        if not isinstance(error, Exception):
            raise
        # Minari uses assertions, and its writers raise errors of many types.
        text = f"{type(error).__name__}: {error}"
        raise RecordingError(f"cannot export to Minari: {text}") from error


def _spaces(path: str | os.PathLike[str], first: Episode) -> dict[str, spaces.Space[Any]]:
    """Return the spaces of all episodes as arguments for Minari, or raise RecordingError."""
    observed = {name: first.observation_specs[name] for name in first.flat_timesteps[0].observation}
    for kind, wanted in (("actions", first.action_specs), ("observations", observed)):
        if not wanted:
            raise RecordingError(f"{path} has no {kind}, which a Minari data set requires")
    return {
        "observation_space": _space(observed, "observation"),
        "action_space": _space(first.action_specs, "action"),
    }


def _buffer(
    number: int, episode: Episode, space_of: Mapping[str, spaces.Space[Any]]
) -> EpisodeBuffer:
    steps = episode.flat_timesteps
    observed = [step.observation for step in steps]
    taken = episode.flat_actions[1:]
    for step in steps[1:]:
        reward = np.asarray(0.0 if step.reward is None else step.reward)
        if reward.shape or reward.dtype.kind not in "biuf":
            raise SpecError(
                f"the rewards of episode {episode.number} have dtype {reward.dtype} and shape "
                f"{list(reward.shape)}; Minari requires single numbers"
            )
    last = len(steps) - 2
    is_terminated = steps[-1].step_type is dm_env.StepType.LAST and episode.end == "terminated"
    return EpisodeBuffer(
        id=number,
        observations=_stacked(observed, space_of["observation_space"], episode, "observation"),
        actions=_stacked(taken, space_of["action_space"], episode, "action"),
        rewards=[0.0 if step.reward is None else float(step.reward) for step in steps[1:]],
        terminations=[index == last and is_terminated for index in range(last + 1)],
        truncations=[index == last and not is_terminated for index in range(last + 1)],
        infos={},
    )


def _stacked(
    values: list[dict[str, Any]], space: spaces.Space[Any], episode: Episode, kind: str
) -> Any:
    names = values[0].keys()
    for index, each in enumerate(values):
        if each.keys() != names:
            raise SpecError(
                f"{kind} {index} of episode {episode.number} has the names {sorted(each)}, but "
                f"the first {kind} has {sorted(names)}; all steps in a data set must have the "
                "same names"
            )
    parts = space.spaces if isinstance(space, spaces.Dict) else dict.fromkeys(names, space)
    stacked = {
        name: to_space_array(parts[name], np.stack([np.asarray(each[name]) for each in values]))
        for name in names
    }
    return next(iter(stacked.values())) if len(stacked) == 1 else stacked


def _same(some: Mapping[str, specs.Array], others: Mapping[str, specs.Array]) -> bool:
    return list(some) == list(others) and all(some[name] == others[name] for name in some)


def _space(by_name: Mapping[str, specs.Array], kind: str) -> spaces.Space[Any]:
    room = Room()
    found = {}
    for name, spec in by_name.items():
        _check_has_space(spec, f"{kind} {name!r}")
        found[name] = spec_to_space(spec, name, room)
    return next(iter(found.values())) if len(found) == 1 else spaces.Dict(found)


def _check_has_space(spec: specs.Array, name: str) -> None:
    reason = ""
    if min(spec.shape, default=1) < 0:
        reason = f"of variable length, {list(spec.shape)}"
    elif 0 in spec.shape:
        reason = f"an array without elements, {list(spec.shape)}"
    elif spec.dtype.kind not in "biuf" or isinstance(spec, specs.StringArray):
        reason = f"{spec!r}"
    if reason:
        raise RecordingError(
            f"{name} is {reason}. Minari has no type of space for it, so the recording cannot be "
            "exported; use recording.episodes to read its values"
        )
