"""The servers of a pool's environments, and a selector that waits for several connections."""

from __future__ import annotations

import collections
import contextlib
import copy
import math
import selectors
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.server_location import Address, Site, is_address
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.launch.specs import launcher_of
from dm_env_rpc_client.system.waiting import at_once
from dm_env_rpc_client.transports.streams import SharedSocket

LOOK_SECONDS = 1.0
"""The time, in seconds, after which a wait without any answer returns all connections, so that the
caller polls them."""


class _Watched(NamedTuple):
    connection: Connection
    descriptor: int
    """The file descriptor of the connection, or -1 if the connection is closed."""
    shared: tuple[SharedSocket, int] | None
    """The shared socket and the connection's number on it, or None if the socket is not shared."""


class ConnectionSelector:
    """A selector that waits until at least one of several connections might have an answer.

    The caller numbers the connections. Each stays registered with the operating system, so that
    waiting again needs no registration. Connections on a shared socket cost nothing while they
    have no answer, so that a thread can wait for a thousand connections.

    Attributes:
      watched: the connections, by number.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.watched: dict[int, _Watched] = {}
        # The numbers of connections by descriptor.
        self._sharing: dict[int, set[int]] = {}
        # Connections with a socket of their own, by number; and, by shared socket, the numbers of
        # its connections by their number there.
        self._alone: dict[int, _Watched] = {}
        self._shared: dict[SharedSocket, dict[int, int]] = {}

    def watch(self, number: int, connection: Connection) -> None:
        """Add a connection, or do nothing if its number is already watched.

        Args:
          number: the number that `wait` returns.
          connection: the connection; call `forget` before its number is used for another
            connection.
        """
        if number in self.watched:
            return
        descriptor = connection.fileno()
        shared = None if descriptor < 0 else connection.shared_socket()
        watched = self.watched[number] = _Watched(connection, descriptor, shared)
        if shared is None:
            self._alone[number] = watched
        else:
            socket, own = shared
            self._shared.setdefault(socket, {})[own] = number
        if descriptor >= 0:
            sharing = self._sharing.setdefault(descriptor, set())
            # One descriptor is registered once, however many streams share it.
            if not sharing:
                self._selector.register(descriptor, selectors.EVENT_READ)
            sharing.add(number)

    def wait(self, wanted: Collection[int], timeout: float | None) -> list[int]:
        """Wait until one of the connections might have something to read.

        Args:
          wanted: the numbers of watched connections to wait for.
          timeout: time limit in seconds; None for no limit, 0 to return at once.

        Returns:
          The numbers of connections. The caller must `poll` each: a connection on a shared socket
          is returned only once for an answer. The result is empty after the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # Checked before `select`: a socket whose bytes have been read is not readable.
        ready = self._look(wanted)
        while not ready:
            left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            readable = self._selector.select(min(left, LOOK_SECONDS))
            if not readable:
                # All are returned, since only polling detects a frozen server.
                return list(wanted) if left > LOOK_SECONDS else []
            ready = self._look(wanted)
            if not ready:
                ready = [number for key, _ in readable for number in self._one_of(key.fd, wanted)]
        return ready

    def _look(self, wanted: Collection[int]) -> list[int]:
        """Return the numbers of the connections with something to read."""
        ready = []
        for socket, numbers in self._shared.items():
            for own in socket.take_unread():
                number = numbers.get(own)
                if number is not None and number in wanted:
                    ready.append(number)
        for number, (connection, descriptor, _) in self._alone.items():
            if number in wanted and (descriptor < 0 or connection.has_unread()):
                ready.append(number)
        return ready

    def _one_of(self, descriptor: int, wanted: Collection[int]) -> list[int]:
        """Return one connection on a readable descriptor, even though none has a complete answer.

        Polling the connection reads the available bytes, such as a part of an answer.
        """
        sharing = self._sharing[descriptor]
        for number in sharing:
            if number in wanted:
                return [number]
        # Forgotten, since an unread descriptor stays readable: its stream has ended, or sent an
        # unexpected answer.
        for number in tuple(sharing):
            self.forget(number)
        return []

    def forget(self, number: int) -> None:
        """Stop watching a connection, or do nothing if it is not watched."""
        watched = self.watched.pop(number, None)
        if watched is None:
            return
        self._alone.pop(number, None)
        if watched.shared is not None:
            socket, own = watched.shared
            del self._shared[socket][own]
            if not self._shared[socket]:
                del self._shared[socket]
        if watched.descriptor >= 0:
            sharing = self._sharing[watched.descriptor]
            sharing.discard(number)
            if not sharing:
                self._selector.unregister(watched.descriptor)

    def close(self) -> None:
        """Forget all connections."""
        self.watched.clear()
        self._sharing.clear()
        self._alone.clear()
        self._shared.clear()
        self._selector.close()


Addresses: TypeAlias = Address | Sequence[Address]
"""The type of arguments that contain server addresses or launch commands."""

_Place: TypeAlias = tuple[int, Address]


def listed(addresses: Addresses) -> list[Address]:
    """Return `addresses` as a list, even if it is a single address."""
    if isinstance(addresses, str) or not hasattr(addresses, "__iter__"):
        return [addresses]
    return list(addresses)


def spread(addresses: Addresses, num_envs: int | None) -> list[_Place]:
    """Return the server number and the address of each environment.

    Args:
      addresses: the addresses. Equal addresses mean the same server, but each server to launch is
        a separate one.
      num_envs: the number of environments; None for one at each address.

    Raises:
      SpecError: there are fewer environments than addresses, or no addresses.
    """
    each = listed(addresses)
    given = arguments.count("num_envs", num_envs, none="None for one at each address")
    count = len(each) if given is None else given
    if not each or count < len(each):
        raise SpecError(
            f"expected at least one environment at each address, got {count} environments for "
            f"addresses {each}"
        )
    places = [
        # The same address is the same server; the same command launches one each time.
        (each.index(address) if is_address(address) else number, address)
        for number, address in enumerate(each)
    ]
    return [places[index % len(places)] for index in range(count)]


class PoolSites:
    """The servers of a pool's environments. Servers that must be launched are launched together.

    Args:
      places: the result of `spread`.
      options: how to connect, and the interpreter of launched servers.

    Attributes:
      of: the server of each environment.

    Raises:
      As `Site`; launched servers have been stopped.
    """

    def __init__(self, places: Sequence[_Place], options: MakeOptions):
        self._numbers = [number for number, _ in places]
        self._users = collections.Counter(self._numbers)
        self._sites: dict[int, Site[ConnectionGroup]] = {}
        launches: dict[int, Address] = {}
        for number, address in places:
            if not is_address(address):
                launches[number] = address
            elif number not in self._sites:
                self._sites[number] = open_site(address, options)

        for address in launches.values():  # All of them are checked before one is started.
            launcher_of(address, options.connect, python=options.python)

        def launch(number: int) -> None:
            self._sites[number] = open_site(launches[number], options)

        try:
            # All at the same time, since servers take seconds to start.
            at_once(launches, launch, lambda number: self._sites[number].close())
        except BaseException:
            self.close()
            raise
        self.of = [self._sites[number] for number in self._numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def by_server(self) -> list[list[int]]:
        """Return the environments of each server, by their indices."""
        found: dict[int, list[int]] = {}
        for index, number in enumerate(self._numbers):
            found.setdefault(number, []).append(index)
        return list(found.values())

    def grouped(self, groups: Sequence[Sequence[int]]) -> PoolSites:
        """Return a `PoolSites` with one server for each group of environments in `groups`."""
        sites = copy.copy(self)
        sites._numbers = [self._numbers[group[0]] for group in groups]
        sites._users = collections.Counter(sites._numbers)
        sites.of = [self.of[group[0]] for group in groups]
        return sites

    def is_shared(self, index: int) -> bool:
        """Whether an environment shares its server with others."""
        return self._users[self._numbers[index]] > 1

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Return a context manager that holds back requests and sends them all when it exits."""
        groups = [site.target for site in self._sites.values()]
        try:
            for group in groups:
                group.cork()
            yield
        finally:
            for group in groups:
                group.uncork()

    def close(self) -> None:
        """Stop the launched servers, and close unused connections."""
        # After an interrupt, some may still be launched.
        sites = list(self._sites.values())
        for site in sites:
            site.target.close()
        at_once([site for site in sites if site.launch is not None], Site.close)


def open_site(address: Address, options: MakeOptions) -> Site[ConnectionGroup]:
    """Return a server whose connections share sockets, after launching it if necessary.

    Args:
      address: as for `make`.
      options: how to connect, and the interpreter of a launched server.
    """

    def group(own: str) -> ConnectionGroup:
        return ConnectionGroup(own, options.connect)

    return Site(address, group, options.connect, python=options.python)


def open_at(
    site: Site[ConnectionGroup], first: dm_env_rpc_pb2.CreateWorldRequest
) -> tuple[Connection, Any]:
    """Open a connection to the server at its current address, as `worlds.Connect` requires."""
    return site.target.open_with(first)
