"""Worlds: events in one world do not affect another.

A server that is asked the same may answer something else each time: an environment can be random,
or run in real time. So runs of one world are compared; in some of them another agent steps in a
world of its own. A finding is a state or an observation that is the same in each run of the world
alone, and another one in each run beside the other agent.

- Random values differ among the runs of the world alone, too. That `_ROUNDS` runs of each kind, in
  a mixed order, differ by their kind, has a probability below 4 ** -_ROUNDS for each value.
- Values that follow a clock differ among the runs of the world alone, too: its agent pauses there
  for a shorter or a longer time than the steps of the other agent took.
- A generator of random numbers may be shared, as long as nobody can tell. If worlds are seeded, so
  that they repeat themselves, an agent that draws from it changes what another one sees.
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
"""The number of steps of each run."""

_ROUNDS = 10
"""The number of runs of each kind that must agree before a difference is a finding."""

_WHOLE_ROUNDS = 3
"""The number of runs of each kind before those."""

_TO_THE_END = 5
"""The step before which the other agent steps to the end of its sequence."""

_END_SECONDS = 2.0
"""The time in which the other agent must reach the end; otherwise it goes on without."""

_SHOWN = 20
"""The number of bytes up to which a value is shown, not its digest: no text of it is cut off."""

_STATE, _OBSERVATION, _CHANGE = _PARTS = "the state", "the observation", "the change of"
"""The compared parts, in the order of the report."""

Seen = dict[tuple[int, str], str]
"""An agent's results in a run, by the number of a step and the name of a part of its answer."""


def _digest(value: bytes) -> str:
    return f"{len(value)} bytes with the digest {hashlib.sha256(value).hexdigest()[:16]}"


class _Run:
    """One sequence of steps in a new world.

    Args:
      trial: the check.
      steps: how many there are.
      pauses: seconds before each step; None if another agent steps in a world of its own meanwhile.

    Attributes:
      seen: what the agent has seen.
      pauses: seconds that passed before each of its steps.
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
                # If it comes in each run, another check reports it.
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
                # The next step of the agent must find it ended.
                if number and (
                    self._other.state is not State.RUNNING or time.monotonic() > deadline
                ):
                    break
                self._other.step()
        except ViolationError as violation:
            if self._other is None or violation.is_unanswered:
                raise
            # This is about the other world; other checks report what each world does wrong.

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
        """Keep the difference to the step before: a count of all worlds begins with any number."""
        before = self._arrays.get(name)
        self._arrays[name] = value
        if before is not None and before.shape == value.shape:
            with np.errstate(all="ignore"):
                change = value - before
            shown = str(change.tolist()) if change.nbytes <= _SHOWN else _digest(change.tobytes())
            self.seen[number, f"{_CHANGE} {name!r}"] = shown


def _tells(same: Seen) -> bool:
    """Whether something is known of every step and changes from one to another."""
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
    """Compare runs of a world alone with runs in which another agent steps in its own world.

    An error: what one client does moves, ends or changes the sequence of another.
    """
    beside = _Run(trial, _STEPS)
    alone = _Run(trial, _STEPS, [0.0] * _STEPS).seen
    again = _Run(trial, _STEPS, [2 * pause for pause in beside.pauses]).seen
    same = {key: value for key, value in alone.items() if again.get(key) == value}
    differs = {key: value for key, value in same.items() if beside.seen.get(key) != value}
    draw = random.Random(trial.options.seed)
    # A few whole runs leave little that differs by chance; then each step is looked at alone.
    suspects, _ = _repeat(trial, draw, _STEPS, _WHOLE_ROUNDS, differs)
    for number in sorted({number for number, _ in suspects}):
        at_step = {key: value for key, value in suspects.items() if key[0] == number}
        found, seen = _repeat(trial, draw, number + 1, _ROUNDS, at_step)
        if found:
            raise _violation(number, found, seen)
    if not _tells({key: value for key, value in same.items() if key not in differs}):
        raise NotOfferedError(
            "no state and no observation both repeats itself in each run of a world and changes "
            "within the run, so shared state would not show"
        )


def _repeat(
    trial: Trial, draw: random.Random, steps: int, rounds: int, alone: Seen
) -> tuple[Seen, Seen]:
    """Repeat both kinds of runs.

    Args:
      trial: the check.
      draw: for the order of the runs, and for the pauses of an agent alone.
      steps: of each run.
      rounds: the number of runs of each kind.
      alone: what was seen by an agent alone, and not beside another one.

    Returns:
      What of it is so in each run, and what was seen beside another agent in the last one.
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
    """End, reset, leave and destroy one world in the middle of a sequence in another.

    An error: what one client does spoils the sequence of another.
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
    """Join a second agent; both step, and neither affects the other.

    An error: what one client does spoils the sequence of another.
    """
    agent = trial.join()
    other = trial.join(world_name=agent.world_name)
    step_together((agent, other), "a StepResponse for each agent")
