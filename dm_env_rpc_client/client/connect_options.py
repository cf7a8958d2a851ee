"""Connection options, combined in one object."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, TypeAlias, Union

from dm_env_rpc_client import arguments
from dm_env_rpc_client.tensors.memory_limits import Limits
from dm_env_rpc_client.transports.endpoint import Endpoint, ReachKeywords, ReachOptions
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from dm_env_rpc_client.recording.recorder import Recorder


Record: TypeAlias = Union[str, "os.PathLike[str]", "Recorder"]
"""The path of a file to record to, or a recorder."""


class DefaultSeconds(float):
    """A default timeout, in seconds."""


CONNECT_SECONDS = DefaultSeconds(10.0)
"""The default time limit, in seconds, for connecting to a server that is already running.

A server launched by this process gets more time.
"""

DEFAULT_KEEPALIVE = "None for the defaults"
"""The description of None in the error message for `keepalive_timeout`."""


class LaunchedKeywords(ReachKeywords, total=False):
    """The keyword arguments of `connect` that are also used to probe a launched server."""

    limits: Limits | None


class ConnectKeywords(LaunchedKeywords, total=False):
    """The keyword arguments of `connect`, named and typed like the fields of `ConnectOptions`."""

    timeout: float | None
    request_timeout: float | None
    keepalive_timeout: float | None
    record: Record | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectOptions(ReachOptions):
    """Connection options: all arguments of `connect` except the address.

    The options are validated on creation; `endpoint` validates whatever depends on the address.

    Raises:
      SpecError: an argument has a wrong type or is out of range.
    """

    timeout: float | None = CONNECT_SECONDS
    request_timeout: float | None = None
    keepalive_timeout: float | None = None
    limits: Limits | None = None
    record: Record | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout", "request_timeout"):
            seconds = arguments.seconds(name, getattr(self, name), none=arguments.NO_LIMIT)
            object.__setattr__(self, name, seconds)
        keepalive = arguments.seconds(
            "keepalive_timeout", self.keepalive_timeout, none=DEFAULT_KEEPALIVE
        )
        object.__setattr__(self, "keepalive_timeout", keepalive)
        check_limits(self.limits)
        # Not by its class: importing a Recorder needs an extra.
        if not hasattr(self.record, "recorded"):
            arguments.path("record", self.record, none="a Recorder, or None")

    @property
    def of_launched(self) -> LaunchedKeywords:
        """The keyword arguments for probing a launched server, which is not recorded."""
        return {**self.reaching, "limits": self.limits}

    @functools.cached_property
    def recorder(self) -> Recorder | None:
        """The recorder shared by all connections with these options.

        Raises:
          RecordingError: as `connect`.
        """
        if self.record is None:
            return None
        from dm_env_rpc_client.recording.recorder import recorder_of

        return recorder_of(self.record)

    def endpoint(self, address: str) -> Endpoint:
        """Return an endpoint that combines a server's address with these options.

        Args:
          address: the server's address.

        Raises:
          SpecError: as `Endpoint`.
          RecordingError: as `connect`.
        """
        limits = self.limits
        size = MAX_MESSAGE_BYTES if limits is None else limits.message_bytes
        endpoint = Endpoint(address, max_message_bytes=size, **self.reaching)
        # Last, so that an invalid argument creates no file.
        return endpoint if self.record is None else dataclasses.replace(endpoint, tap=self.recorder)


def check_limits(limits: Limits | None) -> None:
    """Raise SpecError unless `limits` is a Limits or is None, which selects the defaults."""
    arguments.instance("limits", limits, Limits, "a Limits", none="None for the defaults")


DEFAULT = ConnectOptions()
