"""A dm_env_rpc server on grpcio; for its environment see tests/peers.

    python -m tests.peers.grpcio.server [--address A] [--certificate FILE --key FILE]

It prints its address and ends, gracefully, when stdin does.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.peers.grpcio.environment import PROCESS, Session, Worlds, metadata_pairs

SERVICE = "dm_env_rpc.v1.Environment"
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),
]
GRACE_SECONDS = 0.5
MAX_CONNECTIONS = 300


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default="127.0.0.1:0")
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--key", type=Path)
    return parser.parse_args()


def listen(server: Any, options: argparse.Namespace) -> str:
    """Has a server listen; returns where."""
    if options.certificate:
        pair = (options.key.read_bytes(), options.certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([pair])
        port = server.add_secure_port(options.address, credentials)
    else:
        port = server.add_insecure_port(options.address)
    if options.address.startswith("unix:"):
        return str(options.address)
    return f"{options.address.rpartition(':')[0]}:{port}"


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
