"""Remote environments, in any language, as `dm_env.Environment`.

`make` connects to a dm_env_rpc server, creates a world and joins it, in one line.
"""

from dm_env_rpc_client import errors
from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.async_connection import AsyncConnection, connect_async
from dm_env_rpc_client.async_dm_env_adaptor import AsyncDmEnvAdaptor, make_async
from dm_env_rpc_client.connection import (
    Connection,
    connect,
    create_secure_channel_and_connect,
)
from dm_env_rpc_client.dm_env_adaptor import AutoObservations, DmEnvAdaptor
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.nesting import flatten_dict, unflatten_dict
from dm_env_rpc_client.spec_manager import SpecManager
from dm_env_rpc_client.specs import (
    Bounds,
    bounds,
    dm_env_spec_to_tensor_spec,
    set_bounds,
    tensor_spec_to_dm_env_spec,
)
from dm_env_rpc_client.tensors import pack_tensor, unpack_tensor
from dm_env_rpc_client.worlds import (
    DmEnvAndWorldName,
    create_and_join_world,
    create_world,
    destroy_world,
    join_world,
    leave_world,
    make,
    reset_world,
)

__all__ = [
    "AsyncConnection",
    "AsyncDmEnvAdaptor",
    "AutoObservations",
    "Bounds",
    "Connection",
    "ConnectionClosedError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "DmEnvAdaptor",
    "DmEnvAndWorldName",
    "DmEnvRpcClientError",
    "DmEnvRpcError",
    "ProtocolError",
    "SpecError",
    "SpecManager",
    "bounds",
    "connect",
    "connect_async",
    "create_and_join_world",
    "create_secure_channel_and_connect",
    "create_world",
    "destroy_world",
    "dm_env_rpc_pb2",
    "dm_env_spec_to_tensor_spec",
    "errors",
    "flatten_dict",
    "join_world",
    "leave_world",
    "make",
    "make_async",
    "pack_tensor",
    "properties_pb2",
    "reset_world",
    "set_bounds",
    "tensor_spec_to_dm_env_spec",
    "unflatten_dict",
    "unpack_tensor",
]
