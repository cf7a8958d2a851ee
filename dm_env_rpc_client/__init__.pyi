from . import errors as errors
from ._proto import dm_env_rpc_pb2 as dm_env_rpc_pb2
from ._proto import dm_env_rpc_pb2_grpc as dm_env_rpc_pb2_grpc
from ._proto import properties_pb2 as properties_pb2
from .client.async_connection import AsyncConnection as AsyncConnection
from .client.async_connection import connect_async as connect_async
from .client.async_connection import (
    create_secure_async_channel_and_connect as create_secure_async_channel_and_connect,
)
from .client.connecting import Tls as Tls
from .client.connecting import connect as connect
from .client.connecting import (
    create_secure_channel_and_connect as create_secure_channel_and_connect,
)
from .client.connection import Connection as Connection
from .environment.async_dm_env_adaptor import AsyncDmEnvAdaptor as AsyncDmEnvAdaptor
from .environment.async_worlds import AsyncDmEnvAndWorldName as AsyncDmEnvAndWorldName
from .environment.async_worlds import (
    create_and_join_world_async as create_and_join_world_async,
)
from .environment.async_worlds import create_world_async as create_world_async
from .environment.async_worlds import destroy_world_async as destroy_world_async
from .environment.async_worlds import join_world_async as join_world_async
from .environment.async_worlds import leave_world_async as leave_world_async
from .environment.async_worlds import make_async as make_async
from .environment.async_worlds import reset_world_async as reset_world_async
from .environment.batched import BatchedEnvironment as BatchedEnvironment
from .environment.dm_env_adaptor import DmEnvAdaptor as DmEnvAdaptor
from .environment.requested import AutoObservations as AutoObservations
from .environment.restarting import Restart as Restart
from .environment.worlds import DmEnvAndWorldName as DmEnvAndWorldName
from .environment.worlds import create_and_join_world as create_and_join_world
from .environment.worlds import create_world as create_world
from .environment.worlds import destroy_world as destroy_world
from .environment.worlds import join_world as join_world
from .environment.worlds import leave_world as leave_world
from .environment.worlds import make as make
from .environment.worlds import reset_world as reset_world
from .errors import AgentsFailedError as AgentsFailedError
from .errors import ConnectionClosedError as ConnectionClosedError
from .errors import ConnectionLostError as ConnectionLostError
from .errors import DeadlineExceededError as DeadlineExceededError
from .errors import DmEnvRpcClientError as DmEnvRpcClientError
from .errors import DmEnvRpcError as DmEnvRpcError
from .errors import EnvironmentsFailedError as EnvironmentsFailedError
from .errors import LaunchError as LaunchError
from .errors import LibraryError as LibraryError
from .errors import PropertyError as PropertyError
from .errors import PropertyNotFoundError as PropertyNotFoundError
from .errors import PropertyPermissionError as PropertyPermissionError
from .errors import PropertyValueError as PropertyValueError
from .errors import ProtocolError as ProtocolError
from .errors import RecordingError as RecordingError
from .errors import RestartWarning as RestartWarning
from .errors import SpecError as SpecError
from .errors import UnknownNameError as UnknownNameError
from .protocol.observing import ObservedRequest as ObservedRequest
from .protocol.observing import observe_requests as observe_requests
from .server import serve as serve
from .system.secrets import Secret as Secret
from .tensors.data_types import data_type_to_np_type as data_type_to_np_type
from .tensors.data_types import get_tensor_type as get_tensor_type
from .tensors.data_types import np_type_to_data_type as np_type_to_data_type
from .tensors.memory_limits import Limits as Limits
from .tensors.nesting import flatten_dict as flatten_dict
from .tensors.nesting import unflatten_dict as unflatten_dict
from .tensors.packing import pack_tensor as pack_tensor
from .tensors.packing import unpack_tensor as unpack_tensor
from .tensors.spec_manager import SpecManager as SpecManager
from .tensors.spec_manager import dm_env_spec as dm_env_spec
from .tensors.specs import Bounds as Bounds
from .tensors.specs import bounds as bounds
from .tensors.specs import dm_env_spec_to_tensor_spec as dm_env_spec_to_tensor_spec
from .tensors.specs import set_bounds as set_bounds
from .tensors.specs import tensor_spec_to_dm_env_spec as tensor_spec_to_dm_env_spec

__version__: str
