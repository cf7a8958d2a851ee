"""The generated message modules: the protocol, its properties extension, and the 1.0 line's."""

# `protos/generate.py` writes them; `dm_env_rpc_pb2_grpc.py`, the gRPC service, is written by hand
# and imported when it is first used.

import lazy_loader

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2

__all__ = ["dm_env_rpc_pb2", "properties_pb2"]

__getattr__ = lazy_loader.attach(__name__, submodules=["dm_env_rpc_pb2_grpc"])[0]
