"""Creation of worlds, each in the thread that will own it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.server.batch import Batch
from dm_env_rpc_client.server.batch_settings import AskedRows
from dm_env_rpc_client.server.construction import construct, construct_rows
from dm_env_rpc_client.server.errors import Report, RequestError, unreported
from dm_env_rpc_client.server.factories import Factory
from dm_env_rpc_client.server.options import UNNAMED, ServeOptions
from dm_env_rpc_client.server.row_turns import Waits
from dm_env_rpc_client.server.single_instance import Instance
from dm_env_rpc_client.server.worlds.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from dm_env_rpc_client.server.worlds.world import Game, World
from dm_env_rpc_client.system import owner_threads
from dm_env_rpc_client.system.owner_threads import (
    ElsewhereError,
    MainOwner,
    Owner,
    OwnerGoneError,
    OwnerThread,
)

ENVIRONMENT = "environment"
"""The CreateWorld setting that selects one of several environments."""

ONLY_WORLD = (
    "this server has one world, with the empty name, which can be joined but neither created nor "
    "destroyed"
)

_numbers = itertools.count(1)

_MAKING_SECONDS, _BUSY_SECONDS = 0.5, 0.1
"""Time limits, in seconds. A new world waits this long for the thread that owns the other worlds
of its kind before it gets a thread of its own. The first limit applies while that thread is
creating a world, and the second while it may be taking a step."""


class Kind:
    """The factory that creates worlds of one kind, and what is known about these worlds.

    The thread that will own a world also creates it. This is the leading thread, which also reads
    the requests, or a new thread if worlds of this kind are known to be slow or to wait.

    The first world of its kind often takes a long time to create, because modules are imported.
    Meanwhile, another thread leads. However, cheap worlds should share a thread, so requests for
    further worlds briefly wait for the first thread.

    Args:
      factory: makes environments, games or worlds; or is an `Instance`.
      options: the default actions, the timeout of steps in a game, and other options.
      main: the owner of all worlds; None if they have owners of their own.
      report: receives exceptions raised by a batch's rows.

    Attributes:
      is_slow: whether its worlds take a long time to answer.
    """

    def __init__(
        self,
        factory: Factory,
        options: ServeOptions,
        main: MainOwner | None = None,
        report: Report = unreported,
    ):
        self._factory = factory
        self._report = report
        self._options = options
        self._main = main
        self.is_slow = self._are_games = False
        # The last thread that made a world while it led, and whether it is making one now.
        self._home: Owner | None = None
        self._is_making = False
        self._waits = Waits(options.threads == "world", main is None)
        # The environment exists already; from now on, the main thread owns it.
        if isinstance(factory, Instance) and main is not None:
            factory.give_to(main)

    @property
    def is_instance(self) -> bool:
        """Whether this kind has only one environment, which already exists."""
        return isinstance(self._factory, Instance)

    def make(self, settings: Mapping[str, Any]) -> World:
        """Create a world in the thread that will own it; see `require_thread`.

        Args:
          settings: the settings of the CreateWorld, by flat name.

        Raises:
          RequestError: the factory does not accept these settings.
          Exception: raised by the factory; or its result cannot be served.
        """
        if isinstance(self._factory, Instance):
            return self._make_at(self._factory.owner, settings)
        # A quick factory is called by the thread that reads, which then owns the world.
        owner = self._main or owner_threads.current()
        if owner is not None:
            return self._make_at(owner, settings)
        home = self._home
        if home is not None and not home.slow and not self._is_apart():
            with contextlib.suppress(OwnerGoneError):
                making = home.begin(self._make, home, settings)
                wait = _MAKING_SECONDS if self._is_making else _BUSY_SECONDS
                # That thread may be in a long step; then the call is taken back, and a new thread
                # makes the world.
                if making.wait_begun(wait) or not making.take_back():
                    return making.result()  # type: ignore[no-any-return]  # of `_make`
        return self._make_at(new_owner(), settings)

    def make_rows(self, asked: AskedRows) -> Batch:
        """Create, in this thread, rows of a batch that another process serves.

        Raises:
          HasRowsError: the factory makes batches itself.
          Exception: as `make`.
        """
        assert not isinstance(self._factory, Instance), "there is one for all processes"
        conversion = self._options.conversion
        return construct_rows(self._factory, asked, conversion, self._waits, self._report)

    def _make_at(self, owner: Owner, settings: Mapping[str, Any]) -> World:
        return owner.call(self._make, owner, settings)

    def _is_apart(self) -> bool:
        """Return whether worlds get threads of their own."""
        return self.is_slow or self._are_games or self._options.threads == "world"

    def _is_better_at_home(self, here: Owner) -> bool:
        """Return whether this kind's first thread, rather than `here`, should own a new world."""
        home = self._home
        if home is None or home is here:
            return False
        # A leading thread without worlds returns the lead.
        return home.is_to_lead(here) or (self._is_making and home.is_quick)

    def require_thread(self) -> None:
        """Raise ElsewhereError in an owner's thread if another thread should own a new world."""
        here = owner_threads.current()
        if here is None:
            return
        if isinstance(self._factory, Instance):
            is_apart = here is not self._factory.owner
        elif self._main is not None:
            is_apart = here is not self._main
        else:
            is_apart = self._is_apart() or not here.leads or self._is_better_at_home(here)
        if is_apart:
            raise ElsewhereError

    def _make(self, owner: Owner, settings: Mapping[str, Any]) -> World:
        factory, options = self._factory, self._options
        # Worlds of one kind stay together: their requests then need no change of threads.
        if owner.leads:
            self._home = owner
        is_home = owner is self._home
        if is_home:
            self._is_making = True
        # Held until the world holds the owner itself, or its creation has failed.
        owner.hold()
        try:
            if isinstance(factory, Instance):
                made, make_again = factory.construct(settings, self._report), factory.refuse
            else:
                make_again = functools.partial(
                    construct,
                    factory,
                    conversion=options.conversion,
                    waits=self._waits,
                    report=self._report,
                    singleton=options.singleton,
                )
                made = make_again(settings)
            if isinstance(made, World | Game):
                # Players of a game wait for each other, which a thread with other worlds must not
                # do.
                self._are_games = True
                return hosting(made, options, owner)
            return EnvironmentWorld(
                owner,
                make_again,
                made,
                settings,
                options.default_actions or {},
                (options.callable_names, options.settable_names),
                options.singleton,
            )
        finally:
            if is_home:
                self._is_making = False
            owner.release()


def pick(kinds: Mapping[str, Kind], settings: dict[str, Any]) -> Kind:
    """Return the kind that the settings select, and remove the setting that selects it.

    Raises:
      RequestError: the settings do not select a kind.
    """
    if not kinds:
        raise RequestError.not_now(ONLY_WORLD)
    if len(kinds) == 1 and (UNNAMED in kinds or ENVIRONMENT not in settings):
        return next(iter(kinds.values()))
    name = settings.pop(ENVIRONMENT, None)
    if not isinstance(name, str) or name not in kinds:
        raise RequestError.invalid(
            f"the setting {ENVIRONMENT!r}, which selects the environment to create, is {name!r}; "
            f"expected one of: {', '.join(map(repr, kinds))}"
        )
    return kinds[name]


def hosting(made: World | Game, options: ServeOptions, owner: Owner | None = None) -> World:
    """Return the given world unchanged, or a new world that runs the given game.

    Args:
      made: the world or the game.
      options: how to serve.
      owner: the thread that owns the game; None for one of its own.
    """
    if isinstance(made, World):
        return made
    return SharedWorld(made, options.step_timeout, options.default_actions or {}, owner)


def new_owner() -> Owner:
    """Return a new owner for one world."""
    return OwnerThread(f"dm_env_rpc owns a world ({next(_numbers)})")
