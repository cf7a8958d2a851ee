"""A dm_env_rpc server on grpcio's asyncio side; for its environment see tests/peers.

    python -m tests.peers.grpcio.aio_server [--address A] [--certificate FILE --key FILE]

It prints its address and ends, gracefully, when stdin does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.peers.grpcio.environment import PROCESS, Session, Worlds, metadata_pairs
from tests.peers.grpcio.hosting import GRACE_SECONDS, OPTIONS, SERVICE, listen, parse


async def main() -> None:
    options = parse()
    worlds = Worlds()

    async def process(
        requests: AsyncIterator[pb.EnvironmentRequest], context: Any
    ) -> AsyncIterator[pb.EnvironmentResponse]:
        pairs = metadata_pairs(context.invocation_metadata())
        session = Session(worlds, pairs, lambda: not context.done())
        try:
            async for request in requests:
                # It may sleep, and wait for others.
                yield await asyncio.to_thread(session.answer, request)
        finally:
            session.close()

    handler: Any = grpc.stream_stream_rpc_method_handler(
        process,
        pb.EnvironmentRequest.FromString,
        pb.EnvironmentResponse.SerializeToString,
    )
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {PROCESS: handler}),)
    )
    address = listen(server, options)
    await server.start()
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(GRACE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main())
