"""An environment that existed before it was served and that no factory can create again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.rpc import code_pb2

from dm_env_rpc_client.protocol.batches import NUM_ENVS
from dm_env_rpc_client.server.construction import check_made, construct
from dm_env_rpc_client.server.errors import Report, RequestError, unreported
from dm_env_rpc_client.server.thread_bound import OwnedEnvironment, OwnedGame
from dm_env_rpc_client.server.worlds.world import Game
from dm_env_rpc_client.system.foreign_environments import (
    AS_DECLARED,
    Conversion,
    check,
    converted,
    is_foreign,
)
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owner_threads import Owner, OwnerThread

_PASS_A_FUNCTION = (
    "to serve more environments, pass a factory to `serve`, such as a class or a function"
)


class Instance:
    """An existing environment that only one world at a time can use.

    All its worlds belong to the same owner. A world gets an `OwnedEnvironment` or an `OwnedGame`;
    at its end, it returns the environment without closing it.

    Args:
      environment: an environment of dm_env, Gymnasium or PettingZoo.

    Attributes:
      name: a description of the environment, for error messages.
      owner: the thread that owns the environment.
    """

    def __init__(self, environment: Any):
        self._environment = environment
        kind = type(environment)
        if is_foreign(kind):
            kind = type(environment.unwrapped)
        self.name = f"an instance of {kind.__name__}"
        self.owner: Owner = OwnerThread(f"dm_env_rpc owns {self.name}")
        self.owner.hold()
        self._reset_settings: tuple[str, ...] = ()
        self._conversion = AS_DECLARED
        # Guards both flags: `close` may be called while a world begins or ends.
        self._lock = make_lock()
        self._is_lent = self._is_ending = False

    def take(self, conversion: Conversion) -> None:
        """Set the options for converting the environment.

        Raises:
          SpecError: the environment is a batch that lacks what its conversion requires.
        """
        self._conversion = conversion
        check(self._environment, conversion)

    def give_to(self, owner: Owner) -> None:
        """Make `owner` the owner of the environment, replacing the environment's own thread."""
        self.owner = owner
        owner.hold()

    def construct(self, settings: Mapping[str, Any], report: Report = unreported) -> Any:
        """Return the environment for a new world, like `construction.construct` for a factory.

        Called in the owner's thread.

        Args:
          settings: the settings of the CreateWorld: at most `num_envs`, the number of its rows.
          report: receives exceptions raised by a batch's rows.

        Raises:
          RequestError: another world is using the environment, or other settings or another number
            of rows are requested.
          SpecError: the environment cannot be served.
          TypeError: it is not an environment.
        """
        with self._lock:
            if self._is_ending:
                raise RequestError.not_now("the server has stopped")
            if self._is_lent:
                raise RequestError.not_now(
                    f"this server hosts one environment, {self.name}, and another world "
                    "is using it; destroy that world first, or wait until the server ends it after "
                    f"its client has disconnected (see idle_world_seconds); {_PASS_A_FUNCTION}"
                )
            self._is_lent = True
        try:
            return self._construct(settings, report)
        except BaseException:
            self._give_back()
            raise

    def refuse(self, settings: Mapping[str, Any]) -> Any:
        """Raise RequestError, because no other environment can be created with these settings."""
        own = ", ".join(map(repr, self._reset_settings))
        name = next((name for name in settings if name != NUM_ENVS), NUM_ENVS)
        raise RequestError.invalid(
            f"setting {name!r}: this server hosts one existing environment, {self.name}, so its "
            "worlds take no settings"
            f"{f'; a Reset by its agent takes {own}' if own else ''}; {_PASS_A_FUNCTION}"
        )

    def close(self) -> bool:
        """Close the environment, and return whether it was closed.

        If a world is still using the environment because a step has not ended, the environment is
        closed when the world returns it.

        Raises:
          Exception: raised by its `close`.
        """
        with self._lock:
            self._is_ending = True
            if self._is_lent:
                return False
        self.owner.call(self._close)
        return True

    def abandon(self) -> None:
        """End the owner's thread, but leave the environment open."""
        self.owner.end()

    # The owner's thread runs the methods below.

    def _construct(self, settings: Mapping[str, Any], report: Report) -> Any:
        # Converted for each world, so that a world has no state of the previous one.
        environment = converted(self._environment, self._conversion)
        check_made(environment, f"the environment is {self.name}")
        self._reset_settings = tuple(getattr(environment, "reset_settings", None) or ())
        lent: list[Any] = []

        def lend(**own: Any) -> Any:
            if own:
                self.refuse(own)
            if lent:
                # The code for a batch of another size: the client must not try a world per row.
                raise RequestError(
                    code_pb2.OUT_OF_RANGE,
                    f"setting {NUM_ENVS!r} is {settings[NUM_ENVS]}: this server hosts one "
                    f"environment, {self.name}; {_PASS_A_FUNCTION}",
                )
            kind = OwnedGame if isinstance(environment, Game) else OwnedEnvironment
            lent.append(kind(environment, self.owner, self._give_back))
            return lent[0]

        made = construct(lend, settings, report=report)
        if made is lent[0]:
            return made
        return OwnedEnvironment(made, self.owner, made.close)  # A batch of one row.

    def _give_back(self) -> None:
        with self._lock:
            self._is_lent, is_ending = False, self._is_ending
        if is_ending:
            self._close()

    def _close(self) -> None:
        try:
            self._environment.close()
        finally:
            self.owner.release()
