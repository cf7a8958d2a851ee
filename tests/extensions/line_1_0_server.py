"""A server of the 1.0 line, where properties are messages of the core protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.rpc import status_pb2

from dm_env_rpc_client import pack_tensor, unpack_tensor
from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.testing.scripted_server import Request


def line_1_0_server(values: dict[str, Any]) -> ScriptedServer:
    """A server of the 1.0 line, which knows what stands in `values`."""

    def refuse(code: int, text: str) -> Any:
        return line_1_0_pb2.PropertyResponse(error=status_pb2.Status(code=code, message=text))

    def answer(request: Any) -> Any:
        response = line_1_0_pb2.PropertyResponse()
        field = request.WhichOneof("payload")
        if field == "list_property":
            for parent in request.list_property.keys:
                if parent and parent not in {key.split(".")[0] for key in values}:
                    return refuse(5, f"no {parent}")
                for key, value in values.items():
                    if key.startswith(f"{parent}." if parent else ""):
                        listed = response.list_property.properties[key]
                        listed.is_readable = listed.is_writeable = True
                        tensor = pack_tensor(value)
                        listed.spec.name = key
                        listed.spec.shape[:] = tensor.shape
                        is_string = tensor.WhichOneof("payload") == "strings"
                        listed.spec.dtype = (
                            dm_env_rpc_pb2.STRING if is_string else dm_env_rpc_pb2.INT64
                        )
        elif field == "read_property":
            for key in request.read_property.keys:
                if key not in values:
                    return refuse(5, f"no {key}")
                if key == "forgotten":
                    continue
                response.read_property.properties[key].CopyFrom(pack_tensor(values[key]))
            response.read_property.SetInParent()
        else:
            response.write_property.SetInParent()
            for key, tensor in request.write_property.properties.items():
                values[key] = unpack_tensor(tensor)
        return response

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            # To today's EnvironmentRequest these are unknown fields, which it keeps.
            known = line_1_0_pb2.PropertyRequest.FromString(request.SerializeToString())
            yield answer(known).SerializeToString()

    return ScriptedServer(script)
