"""Wires between a node and its engines: TCP connections that can be cut and mended.

A cut wire drops nothing that was sent, as a network partition does: bytes wait, and new connections
hang. Each direction can be cut alone.
"""

import asyncio
import contextlib

# Bytes that one read takes; what waits behind a cut is bounded by the sockets' own buffers.
READ_BYTES = 64 * 1024
# Directions, as seen from the node.
OUT, IN = "out", "in"
BOTH = (OUT, IN)


class Wire:
    """Listens on a port of its own and passes everything on to `target_port`."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.port = None
        self._server = None
        self._open = {direction: asyncio.Event() for direction in BOTH}
        # Reads that have waited at a cut.
        self.held = 0
        self._tasks = set()
        for direction in BOTH:
            self._open[direction].set()

    async def start(self, port):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self, directions=BOTH):
        for direction in directions:
            self._open[direction].clear()

    def mend(self):
        for direction in BOTH:
            self._open[direction].set()

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far = None
        try:
            # Nothing reaches the engine, not even the handshake, until the way there is whole.
            await self._open[OUT].wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.target_port)
            passing = [
                asyncio.ensure_future(self._pass(OUT, reader, far)),
                asyncio.ensure_future(self._pass(IN, far_reader, writer)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in passing:
                    one.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _pass(self, direction, reader, writer):
        with contextlib.suppress(OSError):
            while True:
                content = await reader.read(READ_BYTES)
                self.held += not self._open[direction].is_set()
                await self._open[direction].wait()
                if not content:
                    return
                writer.write(content)
                await writer.drain()

    async def stop(self):
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
