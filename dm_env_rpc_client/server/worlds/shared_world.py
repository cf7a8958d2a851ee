"""A world that runs a `Game` for the agents of several connections.

In lock-step, a step is taken when every agent has sent its action. Until then, the calls of the
other agents block for at most `step_timeout`. After that, the calls fail with an error that lists
the missing agents, and the agents can step again. An agent does not hold up the others if it has
left, if its client has disconnected, or if its sequence has ended. After an agent's LAST step, its
next step waits until the sequence has ended for all agents. Without lock-step, each agent's step
is taken immediately, with the action of that agent alone.

After a ResetWorld from one connection, the next step of every other agent is INTERRUPTED. The
ResetWorld is answered when all other agents have received that step ("ResetWorldRequest/Response"
in the protocol reference). An agent that sends its own ResetWorld while another agent's is in
progress no longer has to receive that step; otherwise the two agents would wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import dm_env
from google.rpc import code_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.thread_bound import OwnedGame
from dm_env_rpc_client.server.waiting import wait, wait_for
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs, end_state, specs_of
from dm_env_rpc_client.server.worlds.world import (
    SEQUENCE_LOST,
    Agent,
    Game,
    OwnedWorld,
    Player,
    close_owned,
    step_type_of,
    was_closed,
)
from dm_env_rpc_client.system.foreign_environments import check_time_step
from dm_env_rpc_client.system.owner_threads import Owner, OwnerThread
from dm_env_rpc_client.tensors.memory_limits import described

_LAST = dm_env.StepType.LAST

STEP_TIMEOUT = 60.0
"""Default limit, in seconds, on the time that a step waits for the other agents."""


class SharedWorld(OwnedWorld):
    """A world that runs a game for several agents.

    Threads that own nothing use it, because its steps wait for one another. Its owner makes all
    calls to the game.

    Args:
      game: the game. The world closes it.
      step_timeout: seconds that a step waits for the other agents, counted from the last step
        taken; None for no limit.
      default_actions: values, by flat name, for actions that a step omits, in addition to the
        game's own.
      owner: the thread that owns the game; None for one of its own.
    """

    answers = False

    def __init__(
        self,
        game: Game,
        step_timeout: float | None = STEP_TIMEOUT,
        default_actions: Mapping[str, Any] = MappingProxyType({}),
        owner: Owner | None = None,
    ):
        self.owner = owner = OwnerThread("dm_env_rpc owns a game") if owner is None else owner
        self._game = OwnedGame(game, owner, self._close_game)
        self._close_owned = game.close
        self._default_actions = {**self._game.default_actions, **default_actions}
        self._lock_step = self._game.is_lock_step
        self._step_timeout = step_timeout
        # Guards everything below and every call of the game; notified of every change.
        self._changed = threading.Condition()
        self._agents: list[_SharedAgent] = []
        self._is_running = False
        self._is_closed = self._has_closed = False
        # When the last step was taken.
        self._stepped_at = 0.0
        # During a ResetWorld: the agents that have not received an INTERRUPTED step yet.
        self._uninformed: set[_SharedAgent] | None = None
        owner.hold()

    def join(self, settings: Mapping[str, Any]) -> Agent:
        with self._changed:
            try:
                player = self._game.join(settings)
            except ValueError as error:
                raise RequestError.not_now(str(error)) from error
            try:
                flat_specs = FlatSpecs(*specs_of(self._game, player), self._default_actions)
            except BaseException:
                # The client has no agent that could leave, and the player would keep its place.
                self._game.leave(player)
                raise
            agent = _SharedAgent(self, player, flat_specs)
            self._agents.append(agent)
            return agent

    def reset(self, settings: Mapping[str, Any], caller: Agent | None) -> None:
        with self._changed:
            if self._is_closed:
                raise was_closed()
            try:
                self._game.configure(settings)
            except ValueError as error:
                raise RequestError.invalid(str(error)) from error
            if self._uninformed is None:
                self._uninformed = {agent for agent in self._agents if agent.is_running}
            if isinstance(caller, _SharedAgent):
                self._end_sequence_of(caller)
            self._end_reset_when_all_informed()
            is_over = wait_for(
                self._changed,
                lambda: self._uninformed is None or self._is_closed,
                self._step_timeout,
            )
            if not is_over:
                told = [f"player {agent.player!r}" for agent in self._uninformed or ()]
                raise RequestError(
                    code_pb2.DEADLINE_EXCEEDED,
                    f"the world is reset only after every participating agent has taken a step, "
                    f"but {', '.join(told)} took no step within {self._step_timeout} s",
                )

    @contextlib.contextmanager
    def access(self) -> Iterator[Properties | None]:
        with self._changed:
            properties = getattr(self._game, "properties", None)
            yield properties if isinstance(properties, Properties) else None

    def waiting_for(self) -> str:
        with self._changed:
            waiting = [agent for agent in self._agents if agent.is_waiting]
            return "; ".join(self._missing(waiting[0])) if waiting else ""

    def close(self, seconds: float | None = None) -> None:
        self._is_closed = True
        if not self._changed.acquire(timeout=-1 if seconds is None else seconds):
            # The thread with the lock is in a step, and notifies the others at its end.
            close_owned(self.owner, self._close_game, 0.0)
            return
        try:
            self._changed.notify_all()
            close_owned(self.owner, self._close_game, seconds)
        finally:
            self._changed.release()

    def _close_game(self) -> None:
        if not self._has_closed:
            self._has_closed = True
            try:
                self._close_owned()
            finally:
                self.owner.release()

    def _leave(self, agent: _SharedAgent) -> None:
        """Remove an agent, so that the other agents no longer wait for it."""
        self._agents.remove(agent)
        self._end_sequence_of(agent)
        self._game.leave(agent.player)
        if self._is_running and all(other.is_out for other in self._agents):
            self._is_running = False
        elif self._is_running and not agent.is_out and len(self._agents) < self._game.min_players:
            self._is_running = False
            for other in self._agents:
                other.is_interrupted = other.is_running
        self._changed.notify_all()

    def _wait_for_outcome(self, agent: _SharedAgent) -> tuple[State, dm_env.TimeStep]:
        began = time.monotonic()
        while True:
            # Checked after each wake-up: `close` may have come during the wait.
            if self._is_closed:
                raise was_closed()
            if agent.outcome is None and self._is_interrupted(agent):
                assert agent.timestep is not None, "only a running agent is interrupted"
                self._end_sequence_of(agent)
                return State.INTERRUPTED, agent.timestep
            self._advance(agent)
            # A step that was taken is returned, even after a later interruption, which the
            # next step reports.
            if agent.outcome is not None:
                if isinstance(agent.outcome, Exception):
                    raise agent.outcome
                return agent.outcome
            remaining = None
            if self._step_timeout is not None:
                waited = time.monotonic() - max(began, self._stepped_at)
                remaining = self._step_timeout - waited
                if remaining <= 0:
                    raise RequestError(
                        code_pb2.DEADLINE_EXCEEDED,
                        f"no step was taken within {self._step_timeout} s: "
                        f"{'; '.join(self._missing(agent))}",
                    )
            wait(self._changed, remaining)

    def _is_interrupted(self, agent: _SharedAgent) -> bool:
        return agent.is_interrupted or (self._uninformed is not None and agent in self._uninformed)

    def _advance(self, agent: _SharedAgent) -> None:
        """Take the pending step of `agent`, unless the step must still wait."""
        if agent.outcome is not None or self._uninformed is not None:
            return
        unseen, agent.unseen = agent.unseen, None
        if unseen is not None and self._is_running:
            self._give(agent, unseen)
            return
        if not self._is_running and len(self._agents) < max(1, self._game.min_players):
            return
        taking_part = self._taking_part()
        if agent not in taking_part:
            return
        if not self._lock_step:
            self._take_step([agent])
        elif all(
            each.is_waiting and each.outcome is None and not each.is_interrupted
            for each in taking_part
        ):
            self._take_step(taking_part)

    def _taking_part(self) -> list[_SharedAgent]:
        """Return the agents in the running sequence, or all agents if no sequence is running."""
        return [each for each in self._agents if not self._is_running or not each.is_out]

    def _take_step(self, takers: list[_SharedAgent]) -> None:
        """Advance the game and set the outcome of each agent in `takers`."""
        try:
            actions = None
            if self._is_running:
                # Without actions if all takers have just joined; they observe the current state.
                actions = {each.player: each.action for each in takers if each.is_running}
            found = self._game.advance(actions, [each.player for each in self._agents])
            timesteps = dict(zip(self._agents, found, strict=True))
            are_out = self._which_are_out(timesteps)
        except Exception as error:
            self._fail(takers, error)
            return
        except BaseException as error:
            # Raised in the thread of one agent only; the actions of the others have been taken.
            self._fail(takers, RuntimeError(f"the game raised {described(error)}"))
            raise
        self._stepped_at = time.monotonic()
        for (each, timestep), is_out in zip(timesteps.items(), are_out, strict=True):
            was_out, each.is_out = each.is_out, is_out
            each.unseen = None
            if timestep is None:
                continue
            # An agent that was out may be waiting to take part again.
            if each in takers or (self._lock_step and each.is_waiting):
                self._give(each, timestep)
            elif each.is_running and is_out:
                # Another agent's step has ended the sequence; this agent's next step reports it.
                each.outcome = end_state(timestep), timestep
                each.is_running = False
            elif self._lock_step and was_out and not each.is_out:
                each.unseen = timestep
        self._is_running = not all(each.is_out for each in self._agents)
        self._changed.notify_all()

    def _which_are_out(
        self, timesteps: Mapping[_SharedAgent, dm_env.TimeStep | None]
    ) -> list[bool]:
        """Return, for each agent in `timesteps`, whether it is now out of the sequence.

        Raises:
          RuntimeError: the game breaks the rules of `Game.timestep`.
          TypeError: a value is not a TimeStep.
        """
        try:
            are_out = [
                timestep is None or step_type_of(self._game, "timestep", timestep) is _LAST
                for timestep in timesteps.values()
            ]
        except AttributeError:
            # Diagnosed only after a failure: valid TimeSteps need no check.
            for timestep in timesteps.values():
                if timestep is not None:
                    check_time_step(self._game, "timestep", timestep)
            raise
        for each, timestep in timesteps.items():
            if timestep is None and each.is_running and not each.is_interrupted:
                raise RuntimeError(
                    f"the game returned None for player {each.player!r}, which is taking part in "
                    "the sequence; return a LAST TimeStep before returning None for a player"
                )
        if not self._is_running and all(are_out):
            raise RuntimeError("the game began a sequence in which no player takes part")
        return are_out

    def _give(self, agent: _SharedAgent, timestep: dm_env.TimeStep) -> None:
        # An agent that joins or resets amid a sequence begins it with a FIRST step of its own.
        if not agent.is_running and not timestep.first():
            if timestep.last():
                # The sequence ended before the agent received a step of it: the agent waits
                # for the next sequence.
                return
            timestep = dm_env.restart(timestep.observation)
        agent.timestep = timestep
        agent.is_running = not timestep.last()
        agent.outcome = (State.RUNNING if agent.is_running else end_state(timestep)), timestep

    def _fail(self, takers: list[_SharedAgent], error: Exception) -> None:
        """Make the step of each agent in `takers` fail with `error`; leave the world unchanged."""
        for agent in takers:
            agent.outcome = error
        self._changed.notify_all()

    def _end_sequence_of(self, agent: _SharedAgent) -> None:
        """End the sequence of an agent that has been, or is about to be, notified of its end."""
        agent.is_running = agent.is_interrupted = False
        agent.outcome = None
        if self._uninformed is not None:
            self._uninformed.discard(agent)
        self._end_reset_when_all_informed()

    def _end_reset_when_all_informed(self) -> None:
        if self._uninformed is not None and not self._uninformed:
            self._uninformed = None
            self._is_running = False
        self._changed.notify_all()

    def _missing(self, waiting: _SharedAgent) -> list[str]:
        """Return the reasons why the step of `waiting` and other pending steps must still wait."""
        missing = [each for each in self._taking_part() if self._lock_step and not each.is_waiting]
        short = self._game.min_players - len(self._agents)
        reasons = [f"player {agent.player!r} has not stepped" for agent in missing]
        if short > 0:
            reasons.append(f"{short} more player(s) must join")
        if self._uninformed is not None:
            reasons.append("the world is being reset")
            reasons += [
                f"player {a.player!r} has not been informed by a step" for a in self._uninformed
            ]
        if not reasons:
            others = [each for each in self._taking_part() if each is not waiting]
            reasons += [f"player {each.player!r} continues the sequence" for each in others]
        return reasons


class _SharedAgent(Agent):
    """An agent in a SharedWorld.

    The agent and the world access each other's attributes only under the world's lock.
    """

    def __init__(self, world: SharedWorld, player: Player, flat_specs: FlatSpecs):
        self.player = player
        self.flat_specs = flat_specs
        self.action: Any = None
        self.timestep: dm_env.TimeStep | None = None
        # The result of its pending step, or of its next one.
        self.outcome: tuple[State, dm_env.TimeStep] | Exception | None = None
        self.is_waiting = False
        self.is_running = False
        self.is_interrupted = False
        # Whether the running sequence continues without it.
        self.is_out = False
        # The TimeStep with which it takes part again, if it had no step pending then.
        self.unseen: dm_env.TimeStep | None = None
        self._world = world

    @property
    def specs(self) -> dm_env_rpc_pb2.ActionObservationSpecs:
        return self.flat_specs.specs

    def step(
        self, actions: Mapping[str, Any] | None, requested: Collection[str]
    ) -> tuple[State, Mapping[str, Any]]:
        with self._world._changed:
            if actions is None:
                self.action = None
                if self.is_running:
                    # The answer to its first step could not be sent: begin a new sequence.
                    self._world._end_sequence_of(self)
            elif self.is_running:
                self.action = self.flat_specs.nested_action(actions)
            elif self.outcome is None:
                raise RequestError.not_now(SEQUENCE_LOST)
            # Reset in any case: a step that failed is no longer pending, and may be sent again.
            self.is_waiting = True
            try:
                state, timestep = self._world._wait_for_outcome(self)
            finally:
                self.is_waiting, self.outcome = False, None
            return state, self.flat_specs.flat_observations(timestep, requested)

    def reset(self, settings: Mapping[str, Any]) -> None:
        """Make the agent's next step the FIRST of a new sequence, even if a sequence is running."""
        if settings:
            raise RequestError.invalid(
                f"unknown reset settings {', '.join(map(repr, settings))}: this world accepts "
                "settings only when it is created and in a ResetWorld"
            )
        with self._world._changed:
            self._world._end_sequence_of(self)

    def leave(self) -> None:
        with self._world._changed:
            self._world._leave(self)
