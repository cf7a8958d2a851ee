"""Checks that events in one world do not affect another world.

A server can answer the same requests differently each time, because an environment can be random
or run in real time. The check therefore compares several runs, each in a new world. In some of
these runs, another agent steps in its own world at the same time. The check reports a finding if a
state or an observation is the same in all runs without another agent, and no run with another
agent has this value.

- Random values differ even between runs without another agent. With `_ROUNDS` runs of each kind in
  random order, the probability that a random value looks like a finding is below 4 ** -_ROUNDS.
- Clock-dependent values also differ between runs without another agent, because the agent then
  pauses for a shorter or longer time than the other agent's steps took.
- Worlds may share a random number generator if this has no visible effect. The effect is visible
  if seeded worlds otherwise repeat their results: the random numbers drawn for one agent change
  the observations of the other.
"""

from __future__ import annotations

import functools
import hashlib
import random
import time
from collections.abc import Sequence

import numpy as np
from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_world_can_be_joined,
    an_error_changes_no_state,
)
from dm_env_rpc_client.compliance.checks.worlds import (
    a_world_can_be_created_and_destroyed,
    destroy_world,
    names_of_worlds_are_unique,
)
from dm_env_rpc_client.compliance.outcome import NotOfferedError, Takes, ViolationError
from dm_env_rpc_client.compliance.probe import ProbeAgent, describe, step_together
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State

_of_several_worlds = functools.partial(reference, "Multiple world support")

_STEPS = 16
"""The number of steps in each run."""

_ROUNDS = 10
"""The number of runs of each kind that must confirm a difference before it is reported."""

_WHOLE_ROUNDS = 3
"""The number of full-length runs of each kind that are done before the shorter runs."""

_TO_THE_END = 5
"""The number of the step before which the other agent finishes its sequence."""

_END_SECONDS = 2.0
"""The time limit, in seconds, for the other agent to reach the end of its sequence."""

_SHOWN = 20
"""The maximum size, in bytes, of a value that is shown in full rather than as a digest."""

_STATE, _OBSERVATION, _CHANGE = _PARTS = "the state", "the observation", "the change of"
"""The names of the compared parts of an answer, in the order in which they are reported."""

Seen = dict[tuple[int, str], str]
"""An agent's results in a run: a value for each step number and part of the answer."""


def _digest(value: bytes) -> str:
    return f"{len(value)} bytes with the digest {hashlib.sha256(value).hexdigest()[:16]}"


class _Run:
    """One sequence of steps in a new world.

    Args:
      trial: the check.
      steps: the number of steps.
      pauses: seconds before each step; None to let another agent step in its own world instead.

    Attributes:
      seen: the agent's results.
      pauses: seconds that passed before each step.
    """

    def __init__(self, trial: Trial, steps: int, pauses: Sequence[float] | None = None):
        self.seen: Seen = {}
        self.pauses: list[float] = []
        self._trial = trial
        self._other: ProbeAgent | None = None
        self._arrays: dict[str, np.ndarray] = {}
        agent = trial.join()
        for number in range(steps):
            started = time.monotonic()
            if pauses is None:
                self._act_elsewhere(number)
            else:
                time.sleep(pauses[number] if number < len(pauses) else 0.0)
            self.pauses.append(time.monotonic() - started)
            answer = agent.probe.ask(agent.request(requested=agent.specs.observations))
            if isinstance(answer, status_pb2.Status):
                # If every run gets this error, another check reports it.
                self.seen[number, _STATE] = f"none, but {describe(answer)}"
                break
            self._see(number, agent, agent.took(answer))
        trial.clean_up()

    def _act_elsewhere(self, number: int) -> None:
        """Make the other agent take some steps, or step to the end of its sequence."""
        most = self._trial.options.max_steps if number == _TO_THE_END else 1 + number % 3
        deadline = time.monotonic() + _END_SECONDS
        try:
            if self._other is None:
                probe = self._trial.connect()
                self._other = self._trial.join(probe, self._trial.create_another_world(probe))
            for number in range(most):
                # Stop at the end, so that the agent's next step finds the other sequence ended.
                if number and (
                    self._other.state is not State.RUNNING or time.monotonic() > deadline
                ):
                    break
                self._other.step()
        except ViolationError as violation:
            if self._other is None or violation.is_unanswered:
                raise
            # Only effects on the first world count; other checks report errors of single worlds.

    def _see(self, number: int, agent: ProbeAgent, step: dm_env_rpc_pb2.StepResponse) -> None:
        self.seen[number, _STATE] = agent.state.name
        fields = agent.observations
        for uid, tensor in step.observations.items():
            if uid not in fields:
                continue
            label = f"{_OBSERVATION} {fields[uid].name!r}"
            is_shown = tensor.ByteSize() <= _SHOWN
            shown = describe(tensor) if is_shown else _digest(tensor.SerializeToString())
            self.seen[number, label] = shown
            try:
                value = np.asarray(fields[uid].unpack(tensor))
            except SpecError:
                continue  # Another check reports it.
            if value.dtype.kind in "iuf":
                self._see_change(number, fields[uid].name, value)

    def _see_change(self, number: int, name: str, value: np.ndarray) -> None:
        """Record how much a value has changed since the previous step.

        Changes are comparable even for a counter shared by all worlds, which can start at any
        value.
        """
        before = self._arrays.get(name)
        self._arrays[name] = value
        if before is not None and before.shape == value.shape:
            with np.errstate(all="ignore"):
                change = value - before
            shown = str(change.tolist()) if change.nbytes <= _SHOWN else _digest(change.tobytes())
            self.seen[number, f"{_CHANGE} {name!r}"] = shown


def _tells(same: Seen) -> bool:
    """Return whether a state or observation in `same` is known for every step and changes."""
    values: dict[str, list[str]] = {}
    for (_, name), value in same.items():
        values.setdefault(name, []).append(value)
    steps = len(values.get(_STATE, ()))
    return any(
        len(each) == steps and len(set(each)) > 1
        for name, each in values.items()
        if not name.startswith(_CHANGE)
    )


@_of_several_worlds(
    "A step of an agent does not affect an agent in another world.",
    needs=(
        a_world_can_be_joined,
        a_world_can_be_created_and_destroyed,
        names_of_worlds_are_unique,
    ),
    otherwise="worlds share their state",
    takes=Takes(connections=2, joined=2),
)
def a_step_changes_its_own_world_only(trial: Trial) -> None:
    """Compare runs in which another agent steps in its own world with runs without one.

    A violation is an error because one client advances, ends or changes the sequence of another
    client.
    """
    beside = _Run(trial, _STEPS)
    alone = _Run(trial, _STEPS, [0.0] * _STEPS).seen
    again = _Run(trial, _STEPS, [2 * pause for pause in beside.pauses]).seen
    same = {key: value for key, value in alone.items() if again.get(key) == value}
    differs = {key: value for key, value in same.items() if beside.seen.get(key) != value}
    draw = random.Random(trial.options.seed)
    # A few full-length runs rule out most chance differences; the rest is repeated by step.
    suspects, _ = _repeat(trial, draw, _STEPS, _WHOLE_ROUNDS, differs)
    for number in sorted({number for number, _ in suspects}):
        at_step = {key: value for key, value in suspects.items() if key[0] == number}
        found, seen = _repeat(trial, draw, number + 1, _ROUNDS, at_step)
        if found:
            raise _violation(number, found, seen)
    if not _tells({key: value for key, value in same.items() if key not in differs}):
        raise NotOfferedError(
            "each state and observation either stays constant within a run or differs between "
            "runs, so state shared with another world cannot be detected"
        )


def _repeat(
    trial: Trial, draw: random.Random, steps: int, rounds: int, alone: Seen
) -> tuple[Seen, Seen]:
    """Repeat runs with and without another agent, in random order.

    Args:
      trial: the check.
      draw: the random source for the order of the runs and the pauses of an agent alone.
      steps: the number of steps in each run.
      rounds: the number of runs of each kind.
      alone: results that occurred without another agent, but not with one.

    Returns:
      The part of `alone` that every run confirms, and the results of the last run with another
      agent.
    """
    if not alone:
        return {}, {}
    kinds = [True, False] * rounds
    draw.shuffle(kinds)
    beside = _Run(trial, steps)
    for is_beside in kinds:
        if is_beside:
            beside = _Run(trial, steps)
        else:
            pauses = [draw.uniform(0, 2) * pause for pause in beside.pauses]
            seen = _Run(trial, steps, pauses).seen
            alone = {key: value for key, value in alone.items() if seen.get(key) == value}
        alone = {key: value for key, value in alone.items() if beside.seen.get(key) != value}
        if not alone:
            break
    return alone, beside.seen


def _violation(number: int, alone: Seen, beside: Seen) -> ViolationError:
    name = min(
        (name for _, name in alone),
        key=lambda name: [not name.startswith(part) for part in _PARTS],
    )
    received = beside.get((number, name)) or beside.get((number, _STATE)) or "nothing"
    return ViolationError(
        f"{name}: {alone[number, name]}, as in each of {_ROUNDS} runs of this world alone",
        f"StepRequest number {number + 1} to one world, after others to another world",
        f"{name}: {received}, and never the expected one in {_ROUNDS} runs",
    )


@_of_several_worlds(
    "An agent in one world does not affect an agent in another.",
    needs=(an_error_changes_no_state, a_step_changes_its_own_world_only),
    takes=Takes(connections=2, joined=2),
)
def worlds_are_independent(trial: Trial) -> None:
    """End, reset, leave and destroy one world in the middle of a sequence in another world.

    A violation is an error because one client disturbs the sequence of another client.
    """
    agent = trial.join()
    probe = trial.connect()
    other = trial.join(probe, trial.create_another_world(probe))
    agent.begin("a first step in one world")
    other.begin("a first step in the other world")
    if other.run_to_the_end():
        agent.check_is_running("the sequence that ended was in another world")
        other.begin("a first step in the other world after the end of a sequence")
    other.reset_if_offered()
    agent.check_is_running("the Reset was in another world")
    other.leave()
    agent.check_is_running("the LeaveWorld was in another world")
    if not trial.options.companions:  # They are still in that world.
        destroy_world(trial, probe, other.world_name)
    agent.step(expected="a StepResponse, because it was another world that was destroyed")


@overview(
    "Multiagent support",
    "Each connection has its own part in a world, or none.",
    explained_by=(a_step_changes_its_own_world_only,),
    takes=Takes(connections=2, joined=2, agents=2),
)
def agents_of_one_world_have_their_own_states(trial: Trial) -> None:
    """Join a second agent to the world, and check that neither agent affects the other.

    A violation is an error because one client disturbs the sequence of another client.
    """
    agent = trial.join()
    other = trial.join(world_name=agent.world_name)
    step_together((agent, other), "a StepResponse for each agent")
