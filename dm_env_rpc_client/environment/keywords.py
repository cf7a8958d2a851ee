"""The keyword arguments that functions pass on, so that type checkers know them.

A misspelt one is an error for mypy and pyright, as it is a TypeError when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import os

    from dm_env_rpc_client.client.async_connection import AsyncConnection
    from dm_env_rpc_client.client.connect_options import Record
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.async_dm_env_adaptor import AsyncDmEnvAdaptor, AsyncRejoin
    from dm_env_rpc_client.environment.base_adaptor import AutoObservations, Extensions
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor, Rejoin
    from dm_env_rpc_client.environment.restarting import Restart
    from dm_env_rpc_client.tensors.limits import Limits
    from dm_env_rpc_client.transports.credentials import Credentials
    from dm_env_rpc_client.transports.endpoint import Transport
    from dm_env_rpc_client.transports.metadata import Metadata

__all__ = [
    "AdaptorKeywords",
    "AsyncAdaptorKeywords",
    "AsyncJoinKeywords",
    "BatchKeywords",
    "IncomingKeywords",
    "JoinKeywords",
    "MakeKeywords",
    "PlayersKeywords",
    "RemoteKeywords",
    "VectorKeywords",
]


class AdaptorKeywords(TypedDict, total=False):
    """Those of `DmEnvAdaptor`."""

    requested_observations: Sequence[str] | AutoObservations | None
    nested_tensors: bool
    extensions: Extensions[Connection] | None
    rejoin: Rejoin | None
    unwrap_single: bool


class JoinKeywords(AdaptorKeywords, total=False):
    """Those of `join_world`."""

    adaptor_class: type[DmEnvAdaptor]


class IncomingKeywords(JoinKeywords, total=False):
    """Those of `make` that say nothing about how to connect."""

    timeout: float | None
    request_timeout: float | None
    limits: Limits | None
    restart: Restart | None


class AsyncAdaptorKeywords(TypedDict, total=False):
    """Those of `AsyncDmEnvAdaptor`."""

    requested_observations: Sequence[str] | AutoObservations | None
    nested_tensors: bool
    extensions: Extensions[AsyncConnection] | None
    rejoin: AsyncRejoin | None
    unwrap_single: bool


class AsyncJoinKeywords(AsyncAdaptorKeywords, total=False):
    """Those of `join_world_async`."""

    adaptor_class: type[AsyncDmEnvAdaptor]


class MakeKeywords(TypedDict, total=False):
    """Those of `make` that adaptors for other libraries pass on to it."""

    timeout: float | None
    request_timeout: float | None
    credentials: Credentials | None
    insecure: bool
    metadata: Metadata | None
    token: str | None
    transport: Transport
    limits: Limits | None
    record: Record | None
    python: str | os.PathLike[str] | None
    adaptor_class: type[DmEnvAdaptor]
    extensions: Extensions[Connection] | None


class PlayersKeywords(MakeKeywords, total=False):
    """The same, with what is observed."""

    requested_observations: Sequence[str] | AutoObservations | None


class RemoteKeywords(MakeKeywords, total=False):
    """The same, with what starts a lost environment again."""

    restart: Restart | None


class BatchKeywords(RemoteKeywords, total=False):
    """Those of `make` that batches pass on to it."""

    requested_observations: Sequence[str] | AutoObservations | None


class VectorKeywords(BatchKeywords, total=False):
    """Those of `RemoteVectorEnv` that other vectors pass on to it."""

    copy: bool
    num_batches: int | None
    unwrap_single: bool
    seed_setting: str | None
    render_mode: str | None
