"""Remote environments, in any language, as `dm_env.Environment`.

`make` connects to a dm_env_rpc server, creates a world and joins it, in one line.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        EnvironmentsFailedError,
        LibraryError,
        PropertyError,
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
    "EnvironmentsFailedError",
    "LibraryError",
    "PropertyError",
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

# Where each name comes from. Imported when it is first used: the pytest plugin is a part of
# this package and is loaded by every pytest run, whether it has to do with it or not.
_HOMES = {
    "AsyncConnection": "async_connection",
    "AsyncDmEnvAdaptor": "async_dm_env_adaptor",
    "AutoObservations": "dm_env_adaptor",
    "Bounds": "specs",
    "Connection": "connection",
    "ConnectionClosedError": "errors",
    "ConnectionLostError": "errors",
    "DeadlineExceededError": "errors",
    "DmEnvAdaptor": "dm_env_adaptor",
    "DmEnvAndWorldName": "worlds",
    "DmEnvRpcClientError": "errors",
    "DmEnvRpcError": "errors",
    "EnvironmentsFailedError": "errors",
    "LibraryError": "errors",
    "PropertyError": "errors",
    "ProtocolError": "errors",
    "SpecError": "errors",
    "SpecManager": "spec_manager",
    "bounds": "specs",
    "connect": "connection",
    "connect_async": "async_connection",
    "create_and_join_world": "worlds",
    "create_secure_channel_and_connect": "connection",
    "create_world": "worlds",
    "destroy_world": "worlds",
    "dm_env_rpc_pb2": "_proto.dm_env_rpc_pb2",
    "dm_env_spec_to_tensor_spec": "specs",
    "errors": "errors",
    "flatten_dict": "nesting",
    "join_world": "worlds",
    "leave_world": "worlds",
    "make": "worlds",
    "make_async": "async_dm_env_adaptor",
    "pack_tensor": "tensors",
    "properties_pb2": "_proto.properties_pb2",
    "reset_world": "worlds",
    "set_bounds": "specs",
    "tensor_spec_to_dm_env_spec": "specs",
    "unflatten_dict": "nesting",
    "unpack_tensor": "tensors",
}


def __getattr__(name: str) -> Any:
    """Imports a public name, the first time that somebody asks for it."""
    if name == "__spec__":
        _register_with_gymnasium()
        return _SPEC
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    # Some names are modules themselves.
    value = module if _HOMES[name].endswith(name) else getattr(module, name)
    globals()[name] = value
    return value


def _register_with_gymnasium() -> None:
    """Registers Remote-v0 where Gymnasium is imported, and imports nothing."""
    gymnasium = sys.modules.get("gymnasium")
    # Without the attributes it is being imported just now.
    registry = getattr(gymnasium, "registry", None)
    register = getattr(gymnasium, "register", None)
    if registry is not None and register is not None and "Remote-v0" not in registry:
        register(
            "Remote-v0",
            entry_point=f"{__name__}.adaptors.gymnasium:make_remote",
            vector_entry_point=f"{__name__}.adaptors.vector:RemoteVectorEnv",
        )


# `gymnasium.make("dm_env_rpc_client:Remote-v0")` imports this package and takes it that this
# registers the id. Here it does, if the package was not imported yet. If it was, and before
# Gymnasium, importing it again runs nothing of it, but asks for its `__spec__`. So that is not
# kept as an attribute: `__getattr__` hands it out, and registers by the way.
_register_with_gymnasium()
_SPEC = globals().pop("__spec__")
