"""Several agents in one world, each on its own stream, all stepped by one thread.

All Steps are sent before any answer is read, since a lock-step server answers no agent until it
has received the Steps of all agents. If one agent failed, the others would keep waiting for it.
Therefore, the failure of any agent ends all streams, and `AgentsFailedError` lists the failed
agents and their errors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import dm_env

from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.exchanges import closing, drive
from dm_env_rpc_client.environment.joined_adaptor import StartedReset
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.many.pool import NO_ACTION, close_all, failures_of
from dm_env_rpc_client.environment.many.pool_servers import ConnectionSelector, open_site
from dm_env_rpc_client.environment.server_location import Address
from dm_env_rpc_client.environment.world_ends import (
    CLEAN_UP_SECONDS,
    destroy,
    destroy_anew,
    leave,
    undo,
)
from dm_env_rpc_client.environment.worlds import create_world, join_world, reset_world
from dm_env_rpc_client.errors import (
    AgentsFailedError,
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    SpecError,
)
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import PlayersKeywords
    from dm_env_rpc_client.recording.recorder import Recorder


AgentId: TypeAlias = Hashable


class Players:
    """Agents in one world, with connections that share sockets.

    One more stream on the same sockets controls the world.

    Args:
      address: the address of the server, or a server to launch, as for `make`.
      world_name: the world to join; None to create one, which `close` destroys.
      create_world_settings: the settings for creating the world.
      **make_kwargs: arguments of `make`.

    Attributes:
      environments: the joined environments, by agent.

    Raises:
      As `make`.
    """

    def __init__(
        self,
        address: Address,
        world_name: str | None,
        create_world_settings: Mapping[str, Any],
        **make_kwargs: Unpack[PlayersKeywords],
    ):
        self._options = options = MakeOptions.of(make_kwargs)
        self._site = open_site(address, options)
        self._group = self._site.target
        self._selector = ConnectionSelector()
        self.environments: dict[AgentId, DmEnvAdaptor] = {}
        self._numbers: dict[AgentId, int] = {}
        self._pending: dict[AgentId, Pending] = {}
        self._is_closed = False
        # Whether agents have left by losing their connection, which the server may notice late.
        self._has_lost = False
        self._is_own = world_name is None
        with contextlib.ExitStack() as undone:
            undone.callback(self._site.close)
            # A stream of its own: ResetWorld waits for steps of the agents, which use theirs.
            self._control = self._group.open()
            undone.callback(self._control.close)
            self.world_name = (
                create_world(self._control, create_world_settings)
                if world_name is None
                else world_name
            )
            # From here on `close` is responsible.
            undone.pop_all()

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._control.address

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the connections, or None if nothing is recorded."""
        return self._options.connect.recorder

    @property
    def pending(self) -> Collection[AgentId]:
        """The agents whose Steps have been sent but whose answers have not been read."""
        return self._pending.keys()

    def check_open(self) -> None:
        """Raise ConnectionClosedError if the caller or a failure has closed the streams."""
        if self._is_closed:
            raise ConnectionClosedError("the agents have left the world")

    def join(self, agent: AgentId, settings: Mapping[str, Any]) -> DmEnvAdaptor:
        """Let another agent join the world. The errors are the same as those of `join_world`."""
        connection = self._group.open()
        try:
            env = join_world(connection, self.world_name, settings, **self._options.adapt.keywords)
        except BaseException:
            # The world and the other agents stay as they were.
            connection.close()
            raise
        env._end_world = lambda: closing(connection, leave(connection))
        self.environments[agent] = env
        self._numbers[agent] = len(self._numbers)
        return env

    def leave(self, agent: AgentId) -> None:
        """Let one agent leave the world."""
        self._selector.forget(self._numbers.pop(agent))
        self.environments.pop(agent).close()

    def end_sequence(self, settings: Mapping[str, Any]) -> None:
        """End the running sequence of each agent that has one. The next Steps begin new sequences.

        Args:
          settings: the settings in the ResetWorld request.

        Raises:
          AgentsFailedError: some agents failed, and everything is closed.
          DmEnvRpcError: the server refuses the settings.
          Otherwise as `Connection.send`.
        """
        running = [
            agent
            for agent, env in self.environments.items()
            if env.state is State.RUNNING and agent not in self._pending
        ]
        started: dict[AgentId, StartedReset] = {}

        def start(agent: AgentId) -> None:
            started[agent] = self.environments[agent]._start_reset()

        def finish(agent: AgentId) -> None:
            self.environments[agent]._finish_reset(started[agent])

        # All resets leave in one system call, before any answer is awaited.
        with self._group.together():
            failures = failures_of(running, start)
        self._check(failures)
        # Once these are answered, a ResetWorld needs no step to inform the agents.
        self._check(failures_of(running, finish))
        # ResetWorld carries the settings, which a Reset of one agent cannot apply for all.
        if running or settings:
            try:
                reset_world(self._control, self.world_name, settings)
            except DmEnvRpcError:
                # To a server without ResetWorld, each agent has sent its own Reset.
                if settings:
                    raise

    def send(self, actions: Mapping[AgentId, Any]) -> None:
        """Send the Steps of some agents.

        Args:
          actions: the actions by agent, each as for `DmEnvAdaptor.step`.

        Raises:
          SpecError: an action does not conform; nothing was sent.
          AgentsFailedError: nothing can be sent for some agents, and everything is closed.
        """
        prepared = {}
        for agent, action in actions.items():
            try:
                # Every action is validated before any is sent: in lock-step, a missing one would
                # stall the others.
                prepared[agent] = self.environments[agent]._prepare_step(action)
            except SpecError as error:
                raise SpecError(f"agent {agent!r}: {error}") from error

        def start(agent: AgentId) -> None:
            self._pending[agent] = self.environments[agent]._start_step(prepared[agent])

        with self._group.together():
            failures = failures_of([*prepared, *self._refused(prepared)], start)
        self._check(failures)

    def any_answered(self) -> AgentId:
        """Wait until one of the pending Steps is answered or fails, and return its agent."""
        return self._answered(None)[0]

    def finish(self, agents: Iterable[AgentId]) -> dict[AgentId, dm_env.TimeStep]:
        """Wait for the answers to pending Steps.

        Args:
          agents: the agents of these Steps.

        Returns:
          The TimeSteps by agent.

        Raises:
          DmEnvRpcError: the server refuses the Steps of all these agents. They may step again.
          AgentsFailedError: some agents failed, and everything is closed.
        """
        waiting = list(agents)
        timesteps: dict[AgentId, dm_env.TimeStep] = {}
        failures: dict[AgentId, Exception] = {}
        for agent in waiting:
            self._finish(agent, timesteps, failures)
            # The other answers depend on this agent, and may never arrive; see `_fail_after`.
            if failures:
                break
        if failures:
            self._fail_after(waiting, timesteps, failures)
        return timesteps

    def interrupted(self, error: BaseException) -> None:
        """Make all connections unusable if an interrupt caused answers to some agents to be lost.

        Args:
          error: the error; errors of this package do not count as interrupts.
        """
        # Errors of this package leave every connection in a known state; an interrupt does not.
        if not isinstance(error, DmEnvRpcClientError):
            for env in self.environments.values():
                if env._connection is not None:
                    env._connection.interrupted(error)

    def close(self) -> None:
        """Let all agents leave the world, and destroy it if this object created it.

        The method logs errors instead of raising them. A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._selector.close()
        # Determined before the connections are closed, which would make all of them unusable.
        self._has_lost = bool(self._pending) or not all(
            env.connection.is_usable for env in self.environments.values()
        )
        with contextlib.ExitStack() as stack:
            # In reverse: agents leave, then the world ends, then the server.
            stack.callback(self._site.close)
            stack.callback(self._close_world)
            # Closed without LeaveWorld, which the server would answer only after the pending Step.
            for agent in self._pending:
                self.environments[agent].connection.close()
            close_all(self.environments.values())

    def _close_world(self) -> None:
        # A world that existed before stays for others.
        if not self._is_own:
            self._control.close()
        elif self._has_lost and self._control.is_usable:
            with self._control:
                # The server may not have noticed yet that these agents have left.
                destroying = destroy_anew(self._control.reopen, self.world_name)
                drive(undo("destroy the world", destroying))
        else:
            drive(closing(self._control, destroy(self._control, self.world_name)))

    def _refused(self, prepared: dict[AgentId, EncodedRequest]) -> list[AgentId]:
        """Prepare new Steps for agents whose Steps the server refused, and return these agents.

        A server can limit how long a Step waits for the other agents, which might act rarely.
        """
        refused = []
        for agent, pending in self._pending.items():
            if self.environments[agent].connection.poll(pending):
                try:
                    pending.result()
                except DmEnvRpcError:
                    # The server refused a longer wait; this step lets the agent take part.
                    prepared[agent] = self.environments[agent]._prepare_step(NO_ACTION)
                    refused.append(agent)
        return refused

    def _check(self, failures: Mapping[AgentId, Exception]) -> None:
        if failures:
            self._fail(failures)

    def _finish(
        self,
        agent: AgentId,
        timesteps: dict[AgentId, dm_env.TimeStep],
        failures: dict[AgentId, Exception],
    ) -> None:
        try:
            timesteps[agent] = self.environments[agent]._finish_step(self._pending.pop(agent))
        except Exception as error:
            failures[agent] = error

    def _answered(self, timeout: float | None) -> list[AgentId]:
        """Wait until some pending Steps are answered or fail, or until the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        agents = {self._numbers[agent]: agent for agent in self._pending}
        while True:
            done = [
                agent for agent, pending in self._pending.items() if pending.outcome is not None
            ]
            if done:
                return done
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            for number, agent in agents.items():
                self._selector.watch(number, self.environments[agent].connection)
            ready = [agents[number] for number in self._selector.wait(agents, left)]
            found = [
                agent
                for agent in ready
                if self.environments[agent].connection.poll(self._pending[agent])
            ]
            if found or left == 0.0:
                return found

    def _fail_after(
        self,
        awaited: Iterable[AgentId],
        timesteps: dict[AgentId, dm_env.TimeStep],
        failures: dict[AgentId, Exception],
    ) -> NoReturn:
        """Read the remaining answers within a time limit, and then raise the agents' errors."""
        # With a limit: a refusal of all steps has reached all agents, but a failure of one agent
        # may keep the others waiting forever.
        deadline = time.monotonic() + CLEAN_UP_SECONDS
        while self._pending:
            answered = self._answered(max(0.0, deadline - time.monotonic()))
            for agent in answered:
                self._finish(agent, timesteps, failures)
            if not answered:
                break
        refusals = [error for error in failures.values() if isinstance(error, DmEnvRpcError)]
        is_for_all = not timesteps and not any(agent in self._pending for agent in awaited)
        # One refusal for all is an error of the step, and the agents may step again.
        if is_for_all and len(refusals) == len(failures):
            raise refusals[0]
        self._fail(failures)

    def _fail(self, failures: Mapping[AgentId, Exception]) -> NoReturn:
        address = self._control.address
        self.close()
        raise AgentsFailedError(failures, address)
