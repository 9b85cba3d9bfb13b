"""Clients that outlive the broker: they come back, resume their sessions, and resend.

They keep what MQTT asks of a client (packet ids and QoS 2 states survive a connection), write down
in the history what they send and are given, and never forget to write before they acknowledge.
"""

import asyncio
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))

import history as h
import wire

# Session expiry of an hour, as a property of CONNECT.
LASTING = b"\x11" + struct.pack(">I", 3600)
RETRY_SECS = 0.02
ANSWER_SECS = 10
# Most messages are small; one in so many is not.
PAYLOAD_BYTES = 200
LARGE_EVERY = 40
LARGE_BYTES = 7_000
# How long one that leaves waits for what it is owed. Only failing runs wait that long.
LEAVE_SECS = 20


class Lost(Exception):
    """The connection has ended."""


class Client:
    """A connection that is made again and again, and the session behind it."""

    def __init__(self, name, server, history, version=5):
        self.name, self.server, self.history = name, server, history
        # 5, or 4 for MQTT 3.1.1.
        self.version = version
        # Whether the broker has promised to keep the session.
        self.promised = False
        self.running = True
        self.connected = asyncio.Event()
        self.reader = self.writer = None

    async def live(self):
        while self.running:
            try:
                await self.connect()
                await self.read()
            except (Lost, OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                pass
            finally:
                self.hang_up()
            if self.running:
                await asyncio.sleep(RETRY_SECS)

    async def connect(self):
        port = await self.server.port()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        connect = wire.connect(
            self.name, self.version, clean=False, properties=LASTING, will=self.next_will()
        )
        self.writer.write(connect)
        first, body = await asyncio.wait_for(self.packet(), ANSWER_SECS)
        if first != wire.CONNACK or body[1] != 0 or not self.running:
            raise Lost
        present = bool(body[0] & 1)
        if not present and self.promised:
            self.history.append(h.Forgotten(self.name))
            self.promised = False
        await self.resume(present)
        self.connected.set()

    def hang_up(self):
        self.connected.clear()
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    async def packet(self):
        first = (await self.reader.readexactly(1))[0]
        length = shift = 0
        while True:
            byte = (await self.reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return first, await self.reader.readexactly(length)

    async def read(self):
        while True:
            first, body = await self.packet()
            # What was read ahead of a hang-up is lost with it.
            if first == wire.DISCONNECT or self.writer is None:
                raise Lost
            self.on_packet(first, body)

    def next_will(self):
        """What the broker is to publish when this connection ends without a goodbye."""

    async def resume(self, present):
        """Takes up what was under way, or begins anew."""

    def on_packet(self, first, body):
        raise NotImplementedError


class Subscriber(Client):
    """Takes one subscription, and writes down what it is given."""

    def __init__(self, name, server, history, topic_filter, qos, version=5):
        super().__init__(name, server, history, version)
        self.filter, self.qos = topic_filter, qos
        # Packet ids of QoS 2 messages that were given to the application and not released yet.
        self.held = set()
        # The highest number received of each topic.
        self.highest = {}

    async def resume(self, present):
        if not present:
            self.held.clear()
        if not self.promised:
            # Again with each connection, until the answer has come once.
            self.writer.write(wire.subscribe(self.filter, self.qos, version=self.version))

    async def leave(self, acknowledged):
        """Ends the session when all has come that was acknowledged, the highest number of each
        topic: messages are given in order."""
        self.history.append(h.Unsubscribed(self.name, self.filter))
        owed = {}
        if self.promised:
            owed = {t: n for t, n in acknowledged.items() if h.matches(self.filter, t)}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEAVE_SECS
        while any(self.highest.get(topic, -1) < number for topic, number in owed.items()):
            if loop.time() > deadline:
                break
            await asyncio.sleep(0.02)
        self.running = False
        self.hang_up()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", await self.server.port())
            writer.write(wire.connect(self.name, clean=True))
            writer.close()
        except OSError:
            # The broker was killed meanwhile; the session will expire.
            pass

    def on_suback(self, reason):
        if reason >= 0x80:
            raise AssertionError(f"{self.name}: subscription refused with {reason:#x}")
        self.promised = True
        self.history.append(h.Subscribed(self.name, self.filter, self.qos))

    def on_packet(self, first, body):
        if first & 0xF0 == wire.PUBLISH:
            self.on_publish(first, body)
        elif first == wire.SUBACK:
            self.on_suback(body[-1])
        elif first == wire.PUBREL:
            packet_id = struct.unpack(">H", body[:2])[0]
            self.held.discard(packet_id)
            self.writer.write(wire.ack(wire.PUBCOMP, packet_id))

    def on_publish(self, first, body):
        topic, number, packet_id, qos = read_publish(first, body, self.version)
        dup = bool(first & 8)
        if qos == 2:
            if packet_id not in self.held:
                self.held.add(packet_id)
                self.note(h.Received(self.name, topic, number, qos, dup))
            self.writer.write(wire.ack(wire.PUBREC, packet_id))
            return
        self.note(h.Received(self.name, topic, number, qos, dup))
        if qos == 1:
            self.writer.write(wire.ack(wire.PUBACK, packet_id))

    def note(self, received):
        self.history.append(received)
        highest = self.highest.get(received.topic, -1)
        self.highest[received.topic] = max(highest, received.number)


class Publisher(Client):
    """Sends numbered messages on each of its topics in turn, some ahead of their answers."""

    def __init__(self, name, server, history, topics, window, rate, version=5):
        super().__init__(name, server, history, version)
        # (topic, qos, retain) each.
        self.topics, self.window, self.rate = topics, window, rate
        self.next_number = [0] * len(topics)
        self.turn = 0
        self.packet_id = 0
        # Packet id to [topic index, number, released], in the order of sending.
        self.open = {}
        self.room = asyncio.Event()
        self.publishing = True
        # The highest number acknowledged of each topic.
        self.acknowledged = {}

    async def publish(self):
        """Until `publishing` ends, at `rate` messages a second while connected."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self.publishing:
            await self.connected.wait()
            while len(self.open) >= self.window:
                self.room.clear()
                await self.room.wait()
            due = max(due + 1 / self.rate, loop.time() - 0.1)
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            if self.publishing and self.connected.is_set():
                self.send_next()

    def send_next(self):
        at = self.turn = (self.turn + 1) % len(self.topics)
        self.packet_id = self.packet_id % 60_000 + 1
        while self.packet_id in self.open:
            self.packet_id = self.packet_id % 60_000 + 1
        topic, qos, retain = self.topics[at]
        number = self.next_number[at]
        self.next_number[at] += 1
        self.open[self.packet_id] = [at, number, False]
        self.history.append(h.Sent(topic, number, qos, retain))
        self.write(self.packet_id)

    def write(self, packet_id, dup=False):
        at, number, released = self.open[packet_id]
        if released:
            self.writer.write(wire.ack(wire.PUBREL, packet_id))
            return
        topic, qos, retain = self.topics[at]
        size = PAYLOAD_BYTES if number % LARGE_EVERY else LARGE_BYTES
        payload = f"{number} ".encode().ljust(size, b".")
        packet = bytearray(wire.publish(topic, payload, qos, packet_id, retain, self.version))
        packet[0] |= 8 if dup else 0
        self.writer.write(bytes(packet))

    async def resume(self, present):
        # Without a session the broker has forgotten which ids were taken: all are new messages.
        for packet_id, message in self.open.items():
            if not present:
                message[2] = False
            self.write(packet_id, dup=present)

    def on_packet(self, first, body):
        packet_id = struct.unpack(">H", body[:2])[0]
        reason = body[2] if len(body) > 2 else 0
        message = self.open.get(packet_id)
        if message is None:
            return
        at, number, released = message
        topic, qos, _ = self.topics[at]
        if first in (wire.PUBACK, wire.PUBREC) and reason >= 0x80:
            if not released:
                self.history.append(h.Refused(topic, number, reason))
            self.settle(packet_id)
        elif first == wire.PUBACK and qos == 1:
            self.note(h.Acknowledged(topic, number))
            self.settle(packet_id)
        elif first == wire.PUBREC and qos == 2:
            if not released:
                self.note(h.Acknowledged(topic, number))
                # From here on it is a promise that the broker knows this packet id.
                self.promised = True
                message[2] = True
            self.write(packet_id)
        elif first == wire.PUBCOMP and qos == 2 and released:
            self.settle(packet_id)

    def note(self, acknowledged):
        self.history.append(acknowledged)
        highest = self.acknowledged.get(acknowledged.topic, -1)
        self.acknowledged[acknowledged.topic] = max(highest, acknowledged.number)

    def settle(self, packet_id):
        del self.open[packet_id]
        self.room.set()


class Mortal(Client):
    """Leaves a numbered will with each connection, and never says goodbye.

    A SUBACK on the connection is the promise that the session and its will are in the log.
    """

    def __init__(self, name, server, history, topic, qos, version=5):
        super().__init__(name, server, history, version)
        self.topic, self.qos = topic, qos
        self.number = -1

    def next_will(self):
        self.number += 1
        self.history.append(h.Sent(self.topic, self.number, self.qos, False))
        return self.topic, f"{self.number} ", self.qos, False

    async def resume(self, present):
        self.writer.write(wire.subscribe("nothing/here", 1, version=self.version))

    def on_packet(self, first, body):
        if first == wire.SUBACK:
            self.promised = True
            self.history.append(h.Acknowledged(self.topic, self.number))


async def read_retained(name, server, history, topics, patience_secs):
    """Asks once, with a session that ends with the connection, for the retained `topics`.

    The first message of each topic counts: one that is published meanwhile may overtake the
    retained one, which is then not sent behind it.
    """
    if not topics:
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.port())
    client = Client(name, server, history)
    client.reader = reader
    try:
        writer.write(wire.connect(name, clean=True))
        await client.packet()
        history.append(h.Asked(name))
        writer.write(b"".join(wire.subscribe(topic, 1, at) for at, topic in enumerate(topics, 1)))
        wanted = set(topics)

        async def collect():
            while wanted:
                first, body = await client.packet()
                if first & 0xF0 != wire.PUBLISH:
                    continue
                topic, number, packet_id, qos = read_publish(first, body)
                if qos == 1:
                    writer.write(wire.ack(wire.PUBACK, packet_id))
                if topic in wanted:
                    history.append(h.Retained(name, topic, number))
                    wanted.discard(topic)

        try:
            await asyncio.wait_for(collect(), patience_secs)
        except asyncio.TimeoutError:
            # The judge sees which are missing.
            pass
        history.append(h.Told(name))
    except (OSError, asyncio.IncompleteReadError):
        # The broker was killed meanwhile: nothing was told.
        pass
    finally:
        writer.close()


def read_publish(first, body, version=5):
    """Topic, number, packet id (0 at QoS 0) and QoS of a PUBLISH."""
    length = struct.unpack(">H", body[:2])[0]
    topic, at = body[2 : 2 + length].decode(), 2 + length
    qos, packet_id = first >> 1 & 3, 0
    if qos:
        packet_id = struct.unpack(">H", body[at : at + 2])[0]
        at += 2
    if version == 5:
        # None were sent, and none asked for that a broker adds.
        assert body[at] == 0, "properties that nobody sent"
        at += 1
    return topic, int(body[at:].split(b" ", 1)[0]), packet_id, qos

