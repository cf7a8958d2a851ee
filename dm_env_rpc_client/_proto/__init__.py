"""The generated message modules: the protocol, its properties extension, and the 1.0 line's.

`protos/generate.py` writes them. May import protobuf only.
"""

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2

__all__ = ["dm_env_rpc_pb2", "properties_pb2"]
