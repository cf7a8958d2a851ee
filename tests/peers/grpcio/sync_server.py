"""A dm_env_rpc server on grpcio; for its environment see tests/peers.

    python -m tests.peers.grpcio.sync_server [--address A] [--certificate FILE --key FILE]

It prints its address and ends, gracefully, when stdin does.
"""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Iterator

import grpc

from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.peers.grpcio.environment import PROCESS, Session, Worlds, metadata_pairs
from tests.peers.grpcio.hosting import GRACE_SECONDS, OPTIONS, SERVICE, listen, parse

MAX_CONNECTIONS = 300


def main() -> None:
    options = parse()
    worlds = Worlds()

    def process(
        requests: Iterator[pb.EnvironmentRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.EnvironmentResponse]:
        pairs = metadata_pairs(context.invocation_metadata())
        session = Session(worlds, pairs, context.is_active)
        try:
            for request in requests:
                yield session.answer(request)
        finally:
            session.close()

    handler = grpc.stream_stream_rpc_method_handler(
        process, pb.EnvironmentRequest.FromString, pb.EnvironmentResponse.SerializeToString
    )
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(MAX_CONNECTIONS),
        [grpc.method_handlers_generic_handler(SERVICE, {PROCESS: handler})],
        options=OPTIONS,
    )
    address = listen(server, options)
    server.start()
    print(address, flush=True)
    sys.stdin.read()
    server.stop(GRACE_SECONDS).wait()


if __name__ == "__main__":
    main()
