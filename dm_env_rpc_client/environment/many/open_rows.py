"""Open the worlds of N environments: batches if the servers support them, otherwise one each."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message
from google.rpc import code_pb2

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.many.batch_adaptor import (
    BatchAdaptor,
    is_batched,
)
from dm_env_rpc_client.environment.many.batch_worlds import BatchWorlds
from dm_env_rpc_client.environment.many.pool import EnvironmentPool
from dm_env_rpc_client.environment.many.pool_servers import Addresses, PoolSites, spread
from dm_env_rpc_client.environment.many.row_settings import (
    Settings,
    creation_settings,
    for_each,
)
from dm_env_rpc_client.environment.many.row_worlds import StreamWorlds
from dm_env_rpc_client.errors import (
    DmEnvRpcClientError,
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
)
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.tensors.packing import unpack_tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import BatchKeywords


AnyWorlds: TypeAlias = StreamWorlds | BatchWorlds

_log = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""The time limit, in seconds, for a server to report whether it can create batches. Some servers
never answer an extension request."""


def described(name: str, worlds: AnyWorlds, action: Any, observation: Any) -> str:
    """Return the `repr` of N environments: their number, addresses, actions and observations.

    Args:
      name: the name of the class.
      worlds: the environments.
      action: the specs of one environment's actions.
      observation: the specs of one environment's observations.
    """
    from dm_env_rpc_client.tensors.displays.spec_tables import shapes_text

    places = ", ".join(dict.fromkeys(env._where() for env in worlds.pool.environments))
    return printable(
        f"<{name} of {worlds.num_envs} at {places}: actions {shapes_text(action)}; "
        f"observations {shapes_text(observation)}>"
    )


def checked_batches(num_batches: int | None) -> int | None:
    """Return `num_batches`, or raise SpecError if it is neither None nor an int >= 0."""
    none = "None for as few as the server allows"
    return arguments.count("num_batches", num_batches, least=0, none=none)


def open_worlds(
    addresses: Addresses,
    num_envs: int | None,
    create_world_settings: Settings,
    join_world_settings: Settings,
    *,
    num_batches: int | None = None,
    world_settings: Mapping[str, Any] = NO_SETTINGS,
    **make_kwargs: Unpack[BatchKeywords],
) -> AnyWorlds:
    """Open the worlds of N environments.

    Args:
      addresses: one address, or several, over which the environments are distributed in turn. An
        address may be a server to launch, as for `make`; in a list, each one is launched
        separately.
      num_envs: the number of environments, N; None for one at each address, or for all rows of a
        served batch.
      create_world_settings: settings for creating the worlds; see `Settings`.
      join_world_settings: settings for joining the worlds, in the same form.
      num_batches: the number of batches at each server that makes batches; 0 for a separate stream
        for each environment; None for as few as the server allows.
      world_settings: additional settings, used only for batched worlds.
      **make_kwargs: arguments of `make`.

    Raises:
      SpecError: the arguments are invalid, or the specs of the environments differ.
      EnvironmentsFailedError: some environments could not be opened. No world is left on the
        servers.
    """
    options = MakeOptions.of(make_kwargs)
    num_batches = checked_batches(num_batches)
    places = spread(addresses, num_envs)
    count = len(places)
    creating = for_each(count, create_world_settings, "create_world_settings")
    joining = for_each(count, join_world_settings, "join_world_settings")
    if num_envs is not None:
        _check_rows(num_envs, creating)
    # Servers are launched last: all arguments have been validated.
    sites = PoolSites(places, options)
    if num_batches == 0 or not options.adapt.is_for_batches:
        return StreamWorlds(EnvironmentPool(sites, creating, joining, options.flat()))
    try:
        batched: AnyWorlds | None = None
        # The served environment may be a batch itself, such as a vector environment.
        if num_envs is None or count == 1:
            batched = _open_found(sites, creating, joining, options)
            if isinstance(batched, StreamWorlds) or num_envs in (None, batched.num_envs):
                return batched
            # That may be its default number of rows, which a setting can change.
            batched.pool.close(keeps_sites=True)
        batched = _open_batches(sites, creating, joining, num_batches, world_settings, options)
        if batched is None and num_envs == 1 == count:
            raise SpecError(
                f"the world at {sites.of[0].name} has more than one row; set num_envs to the "
                "number of its rows, or to None"
            )
    except BaseException:
        sites.close()
        raise
    return batched or StreamWorlds(EnvironmentPool(sites, creating, joining, options.flat()))


def _check_rows(num_envs: int, creating: Sequence[Mapping[str, Any]]) -> None:
    """Raise SpecError if settings contain `num_envs`, since each environment would be a batch."""
    for index, own in enumerate(creating):
        if batches.NUM_ENVS in own:
            raise SpecError(
                f"create_world_settings of environment {index} contain {batches.NUM_ENVS!r} = "
                f"{arguments.shown(own[batches.NUM_ENVS])}, and the argument num_envs is "
                f"{num_envs}, so each of the {num_envs} environments would be a batch; remove the "
                "setting, because num_envs requests batches by itself if the server makes them, "
                "and num_batches sets their number"
            )


def _open_found(
    sites: PoolSites,
    creating: Sequence[Mapping[str, Any]],
    joining: Sequence[Mapping[str, Any]],
    options: MakeOptions,
) -> AnyWorlds:
    """Open a world at each address. Each world may be a batch with any number of rows."""
    pool = EnvironmentPool(sites, creating, joining, options.flat(_adaptor), keeps_sites=True)
    groups: list[range] = []
    for environment in pool.environments:
        if not isinstance(environment, BatchAdaptor):
            # The pool has checked that all have the same specs.
            return StreamWorlds(pool)
        start = groups[-1].stop if groups else 0
        groups.append(range(start, start + environment.count))
    return BatchWorlds(pool, groups)


def _adaptor(
    connection: Connection, specs: dm_env_rpc_pb2.ActionObservationSpecs, **keywords: Any
) -> DmEnvAdaptor:
    kind = BatchAdaptor if is_batched(specs) else DmEnvAdaptor
    return kind(connection, specs, **keywords)


def _open_batches(
    sites: PoolSites,
    creating: Sequence[Mapping[str, Any]],
    joining: Sequence[Mapping[str, Any]],
    num_batches: int | None,
    world_settings: Mapping[str, Any],
    options: MakeOptions,
) -> BatchWorlds | None:
    """Open batched worlds, or return None if each environment needs its own stream."""
    # A batch is joined once, with one set of join settings.
    if any(own != joining[0] for own in joining):
        return None
    groups: list[list[int]] = []
    for rows in sites.by_server():
        most = _ask(sites, rows[0])
        if not most:
            return None
        # As few batches as the server's limit permits, unless the user asks for more.
        wanted = min(len(rows), max(num_batches or 1, -(-len(rows) // most)))
        # Strided, so that batches differ by one row at most.
        groups += [rows[start::wanted] for start in range(wanted)]
    settings = [creation_settings([creating[row] for row in rows]) for rows in groups]
    if any(own is None for own in settings):
        return None
    # The server has answered, so it knows JoinWorld without a name.
    options = dataclasses.replace(options.flat(BatchAdaptor), joins_created=True)
    # The factory of a vector environment may take no setting of a batch but the number of rows.
    for extra in [world_settings, {}] if world_settings else [{}]:
        of_worlds = [
            {**(own or {}), **extra, batches.NUM_ENVS: len(rows)}
            for own, rows in zip(settings, groups, strict=True)
        ]
        of_joining = [joining[0]] * len(groups)
        pool = functools.partial(
            EnvironmentPool,
            sites.grouped(groups),
            of_worlds,
            of_joining,
            options,
            labels=[_label(rows, sites.of[rows[0]].name) for rows in groups],
            keeps_sites=True,
        )
        try:
            opened = pool()
        except EnvironmentsFailedError as error:
            # Servers refuse batches, such as of games, or settings, which a single world refuses,
            # too. Only OUT_OF_RANGE forbids a world for each environment.
            refused = error.failures.values()
            if not all(isinstance(each, _REFUSED) for each in refused) or any(
                isinstance(each, DmEnvRpcError) and each.code == code_pb2.OUT_OF_RANGE
                for each in refused
            ):
                raise
            _log.info("the environments are not opened in batches: %s", error)
        else:
            worlds = BatchWorlds(opened, groups)
            for adaptor, rows in zip(worlds.adaptors, groups, strict=True):
                # A server may ignore the setting; rows without an environment would be silently
                # missing.
                if adaptor.count != len(rows):
                    worlds.close()
                    raise SpecError(
                        f"requested {len(rows)} rows, but the server at "
                        f"{sites.of[rows[0]].name} made a batch of {adaptor.count}"
                    )
            return worlds
    return None


_REFUSED = (DmEnvRpcError, SpecError)


def _label(rows: Sequence[int], address: str) -> str:
    return f"the batch of environments {rows[0]} to {rows[-1]} at {address}"


def _ask(sites: PoolSites, index: int) -> int:
    """Ask a server for the maximum number of rows in a batch; return 0 if it makes no batches."""
    group = sites.of[index].target
    try:
        connection, pending = group.open_with(_question(), _ASK_SECONDS)
    except DmEnvRpcClientError as error:
        raise EnvironmentsFailedError({index: error}, {index: sites.of[index].name}) from error
    try:
        most = _number(connection, pending)
    except BaseException:
        connection.close()
        raise
    # Reused for the first world: one connection fewer.
    group.give_back(connection)
    return most


def _question() -> any_pb2.Any:
    request = properties_pb2.PropertyRequest()
    request.read_property.key = batches.MAX_NUM_ENVS
    packed = any_pb2.Any()
    packed.Pack(request)
    return packed


def _number(connection: Connection, pending: Any) -> int:
    """Return the number in a server's answer, or 0 if no answer with a number arrives."""
    response = properties_pb2.PropertyResponse()
    try:
        answer = connection.wait(pending)
        if not answer.Unpack(response) or response.WhichOneof("payload") != "read_property":
            return 0
        found = np.asarray(unpack_tensor(response.read_property.value))
        # Only an integer is accepted: any kind of server may have answered.
        return max(0, int(found)) if found.dtype.kind in "iu" and found.shape == () else 0
    # A server without this extension answers with an error, with nothing, or ends the stream.
    except (DmEnvRpcClientError, protobuf_message.DecodeError, TypeError, ValueError) as error:
        _log.debug("%s does not report batches: %s", connection.address, error)
        return 0
