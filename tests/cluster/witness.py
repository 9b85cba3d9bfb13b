"""A client of its own that looks at one node: what it sends, whether it keeps a connection."""

import asyncio
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

import wire

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
ANSWER_SECS = 10
# A refusal comes at once.
REFUSED_SECS = 1
# Nobody subscribes to it.
TOPIC = "witness/a"
NAMES = itertools.count()


class Witness:
    """One connection to one node."""

    @classmethod
    async def of(cls, node):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", node.mqtt)
        self.writer.write(wire.connect(f"witness-{next(NAMES)}"))
        await asyncio.wait_for(self._packet(), ANSWER_SECS)
        return self

    async def _packet(self):
        first = await self.reader.readexactly(1)
        length = await self.reader.readexactly(1)
        return first + length + await self.reader.readexactly(length[0])

    async def publish(self, count):
        """At QoS 1, without a wait for the answers."""
        for packet_id in range(1, count + 1):
            self.writer.write(wire.publish(TOPIC, b"x", 1, packet_id))
        await self.writer.drain()

    async def retain(self):
        """Publishes a message to be retained. The reason of the answer; None: none has come."""
        self.writer.write(wire.publish(TOPIC, b"x", 1, 1, retain=True))
        try:
            body = (await asyncio.wait_for(self._packet(), REFUSED_SECS))[2:]
            return body[2] if len(body) > 2 else 0
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            return None

    async def is_served(self):
        """Whether the connection still works."""
        try:
            self.writer.write(PINGREQ)
            return await asyncio.wait_for(self._packet(), ANSWER_SECS) == PINGRESP
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            return False

    async def rest(self, secs):
        """All that the node still sends before the connection ends."""
        content = b""
        try:
            async with asyncio.timeout(secs):
                while more := await self.reader.read(4096):
                    content += more
        except ConnectionError:
            pass
        return content

    def close(self):
        self.writer.close()
