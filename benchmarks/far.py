"""A service made far away: what comes from it takes a round trip more, and shares one line of so many bytes a second.

A proxy of bytes in a process of its own. A new connection costs a round trip, as does each request; replies of
all connections pass through one line, in turn. Nothing is lost, and a connection begins at full speed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

PIECE = 64 * 2**10  # bytes that pass the line at once


@contextmanager
def far(url: str, *, bytes_per_second: float = 0, round_trip: float = 0) -> Iterator[str]:
    """The URL under which the service at `url` is far away until the block ends. 0 bytes a second: no limit."""
    arguments = [urlsplit(url).netloc, str(bytes_per_second), str(round_trip)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.far", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Line:
    """One line: when it is free again."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._free = bytes_per_second, 0.0

    async def passed(self, size: int) -> None:
        """Wait until so many bytes have passed, behind those that came before."""
        if self._rate:
            now = asyncio.get_running_loop().time()
            self._free = max(now, self._free) + size / self._rate
            await asyncio.sleep(self._free - now)


async def _requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, round_trip: float) -> None:
    while piece := await reader.read(PIECE):
        await asyncio.sleep(round_trip)
        writer.write(piece)
        await writer.drain()


async def _replies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
    while piece := await reader.read(PIECE):
        await line.passed(len(piece))
        writer.write(piece)
        await writer.drain()


async def _serve(service: str, bytes_per_second: float, round_trip: float) -> None:
    host, _, port = service.partition(":")
    line = _Line(bytes_per_second)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(round_trip)
        near, back = await asyncio.open_connection(host, int(port), limit=4 * PIECE)
        ways = [
            asyncio.ensure_future(way)
            for way in (_requests(reader, back, round_trip), _replies(near, writer, line))
        ]
        with suppress(OSError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for each in (back, writer):
            each.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=4 * PIECE, backlog=128)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
