"""The servers of environments that one thread steps together, at addresses or launched for them."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.sites import Address, Site, is_address
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.launch.specs import launcher_of
from dm_env_rpc_client.system.threads import at_once

__all__ = [
    "Addresses",
    "PoolSites",
    "listed",
    "open_at",
    "open_site",
    "spread",
]

Addresses: TypeAlias = Address | Sequence[Address]
"""Where the servers are, or what launches them."""

_Place: TypeAlias = tuple[int, Address]


def listed(addresses: Addresses) -> list[Address]:
    """Returns one address, or several, as a list."""
    if isinstance(addresses, str) or not hasattr(addresses, "__iter__"):
        return [addresses]
    return list(addresses)


def spread(addresses: Addresses, num_envs: int | None) -> list[_Place]:
    """Returns the place of each environment: a number of the server, and its address.

    Args:
      addresses: equal addresses are one server, and each server to launch is one of its own.
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
        (each.index(address) if is_address(address) else number, address)
        for number, address in enumerate(each)
    ]
    return [places[index % len(places)] for index in range(count)]


class PoolSites:
    """The servers of some environments. What has to be launched is launched at the same time.

    Args:
      places: what `spread` returned.
      options: how to connect, and what to launch.

    Attributes:
      of: the server of each environment.

    Raises:
      As `Site`; nothing stays that was launched.
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
            at_once(launches, launch)
        except BaseException:
            self.close()
            raise
        self.of = [self._sites[number] for number in self._numbers]

    def __len__(self) -> int:
        return len(self._numbers)

    def by_server(self) -> list[list[int]]:
        """Returns the environments of each server, by their indices."""
        found: dict[int, list[int]] = {}
        for index, number in enumerate(self._numbers):
            found.setdefault(number, []).append(index)
        return list(found.values())

    def grouped(self, groups: Sequence[Sequence[int]]) -> PoolSites:
        """Returns the same servers for groups of environments, each of which is at one server."""
        sites = copy.copy(self)
        sites._numbers = [self._numbers[group[0]] for group in groups]
        sites._users = collections.Counter(sites._numbers)
        sites.of = [self.of[group[0]] for group in groups]
        return sites

    def is_shared(self, index: int) -> bool:
        """Whether the server of an environment is that of others, too."""
        return self._users[self._numbers[index]] > 1

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context in which one thread sends on several connections: all is sent at its end."""
        groups = [site.target for site in self._sites.values()]
        try:
            for group in groups:
                group.cork()
            yield
        finally:
            for group in groups:
                group.uncork()

    def close(self) -> None:
        """Ends the servers that were launched, and connections that were not used in the end."""
        for site in self._sites.values():
            site.target.close()
        at_once([site for site in self._sites.values() if site.launch is not None], Site.close)


def open_site(address: Address, options: MakeOptions) -> Site[ConnectionGroup]:
    """Returns a server, launched if need be, with connections to it that share sockets.

    Args:
      address: as for `make`.
      options: how to connect, and what to launch.
    """

    def group(own: str) -> ConnectionGroup:
        return ConnectionGroup(own, options.connect)

    return Site(address, group, options.connect, python=options.python)


def open_at(
    site: Site[ConnectionGroup], first: dm_env_rpc_pb2.CreateWorldRequest
) -> tuple[Connection, Any]:
    """Opens a connection to the server where it is now; as `worlds.Connect`."""
    return site.target.open_with(first)
