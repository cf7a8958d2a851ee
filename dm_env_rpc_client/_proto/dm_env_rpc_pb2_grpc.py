"""The gRPC service of the protocol, for servers and clients that are written with grpcio.

Written by hand, with the names that grpcio's generator uses. A generated module would refuse every
grpcio that is older than its generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from dm_env_rpc_client._proto import dm_env_rpc_pb2

__all__ = ["EnvironmentServicer", "EnvironmentStub", "add_EnvironmentServicer_to_server"]

_SERVICE: str = dm_env_rpc_pb2.DESCRIPTOR.services_by_name["Environment"].full_name
_METHOD = "Process"


class EnvironmentStub:
    """Calls the service.

    Args:
      channel: a grpc.Channel or grpc.aio.Channel.

    Attributes:
      Process: the method, which takes an iterator of EnvironmentRequests and returns the call.
    """

    def __init__(self, channel: Any):
        self.Process: Any = channel.stream_stream(
            f"/{_SERVICE}/{_METHOD}",
            request_serializer=dm_env_rpc_pb2.EnvironmentRequest.SerializeToString,
            response_deserializer=dm_env_rpc_pb2.EnvironmentResponse.FromString,
        )


class EnvironmentServicer:
    """The base class of a server that is written by hand."""

    def Process(  # noqa: N802 - the name of the method in the protocol
        self,
        request_iterator: Iterable[dm_env_rpc_pb2.EnvironmentRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[dm_env_rpc_pb2.EnvironmentResponse]:
        """Answers the requests of one stream, in order; to be overridden.

        Args:
          request_iterator: the requests.
          context: of the call.

        Returns:
          An iterator of the answers, one for each request.
        """
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the server does not implement Process")


def add_EnvironmentServicer_to_server(  # noqa: N802 - as the generator names it
    servicer: EnvironmentServicer, server: Any
) -> None:
    """Has a server call a servicer.

    Args:
      servicer: one whose `Process` is implemented.
      server: a grpc.Server or grpc.aio.Server that was not started yet.
    """
    handler: Any = grpc.stream_stream_rpc_method_handler(
        servicer.Process,
        request_deserializer=dm_env_rpc_pb2.EnvironmentRequest.FromString,
        response_serializer=dm_env_rpc_pb2.EnvironmentResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),)
    )
