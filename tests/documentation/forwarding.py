"""Stands in for `ssh -R PORT:HOST:PORT`: leads from a port of this machine to a server."""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
    writer.close()


async def main() -> None:
    """Forwards until it is ended."""
    port, host, target = sys.argv[sys.argv.index("-R") + 1].split(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection(host, int(target))
        await asyncio.gather(_pass_on(reader, there), _pass_on(there_reader, writer))

    server = await asyncio.start_server(forward, "localhost", int(port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
