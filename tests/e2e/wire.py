"""MQTT packets by hand, for what no client library would do."""

import itertools
import os
import socket
import struct

from broker import PATIENCE_SECS

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH = 0x90, 0xB0, 0xD0, 0xE0, 0xF0

_numbers = itertools.count()


def fresh(what="t"):
    """A name that no other test uses."""
    return f"{what}/{os.getpid()}-{next(_numbers)}"


def varint(value):
    out = b""
    while True:
        value, low = divmod(value, 128)
        if value == 0:
            return out + bytes([low])
        out += bytes([low | 0x80])


def prefixed(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(value)) + value


def packet(first, body=b""):
    return bytes([first]) + varint(len(body)) + body


def connect(
    client_id="", version=5, clean=True, keep_alive=0, properties=b"", user=None, password=None,
    will=None,
):
    """`properties` are raw bytes; `will` is (topic, payload, qos, retain)."""
    flags = (2 if clean else 0) | (0x80 if user is not None else 0)
    flags |= 0x40 if password is not None else 0
    if will:
        flags |= 4 | will[2] << 3 | (0x20 if will[3] else 0)
    body = prefixed("MQTT") + bytes([version, flags]) + struct.pack(">H", keep_alive)
    if version == 5:
        body += varint(len(properties)) + properties
    body += prefixed(client_id)
    if will:
        body += (b"\0" if version == 5 else b"") + prefixed(will[0]) + prefixed(will[1])
    for value in (user, password):
        body += prefixed(value) if value is not None else b""
    return packet(0x10, body)


def publish(topic, payload=b"", qos=0, packet_id=1, retain=False, version=5, properties=b""):
    body = prefixed(topic) + (struct.pack(">H", packet_id) if qos else b"")
    if version == 5:
        body += varint(len(properties)) + properties
    payload = payload.encode() if isinstance(payload, str) else payload
    return packet(0x30 | qos << 1 | (1 if retain else 0), body + payload)


def subscribe(topic_filter, options=0, packet_id=1, version=5, properties=b""):
    body = struct.pack(">H", packet_id)
    if version == 5:
        body += varint(len(properties)) + properties
    return packet(0x82, body + prefixed(topic_filter) + bytes([options]))


def ack(first, packet_id, reason=None):
    body = struct.pack(">H", packet_id)
    return packet(first, body + (b"" if reason is None else bytes([reason])))


class Peer:
    """A connection that sends what it is told. `stream` may be anything with sendall and recv."""

    def __init__(self, address, version=5, source=None):
        self.version = version
        if isinstance(address, (tuple, int)):
            address = ("127.0.0.1", address) if isinstance(address, int) else address
            source = source and (source, 0)
            self.stream = socket.create_connection(address, PATIENCE_SECS, source)
            self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.stream = address
            self.stream.settimeout(PATIENCE_SECS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stream.close()

    def send(self, *packets):
        self.stream.sendall(b"".join(packets))
        return self

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.stream.recv(count - len(data))
            except ConnectionError:
                more = b""
            if not more:
                return None
            data += more
        return data

    def recv(self):
        """First byte and body of the next packet, or None at the end of the connection."""
        first = self._exactly(1)
        if first is None:
            return None
        length = shift = 0
        while True:
            byte = self._exactly(1)
            if byte is None:
                return None
            length |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
        return first[0], self._exactly(length) if length else b""

    def expect(self, first):
        """The next packet, which begins with this byte; returns its body."""
        got = self.recv()
        assert got is not None, f"the connection ended, {first:#x} was expected"
        assert got[0] == first, f"{got[0]:#x} {got[1].hex()} came, {first:#x} was expected"
        return got[1]

    def connect(self, **options):
        """CONNECT and CONNACK; returns (flags, reason, rest)."""
        self.send(connect(version=self.version, **options))
        body = self.expect(CONNACK)
        return body[0], body[1], body[2:]

    def accepted(self, **options):
        flags, reason, _ = self.connect(**options)
        assert reason == 0, f"refused with {reason:#x}"
        return self

    def subscribed(self, topic_filter, options=0):
        self.send(subscribe(topic_filter, options, version=self.version))
        reason = self.expect(SUBACK)[-1]
        assert reason < 0x80, f"refused with {reason:#x}"
        return self

    def message(self):
        """(topic, payload, qos, retain) of the next packet, a PUBLISH; acknowledged if QoS 1."""
        got = self.recv()
        assert got is not None and got[0] & 0xF0 == PUBLISH, got
        first, body = got
        qos = first >> 1 & 3
        length = struct.unpack(">H", body[:2])[0]
        topic, at = body[2 : 2 + length].decode(), 2 + length
        if qos:
            packet_id = struct.unpack(">H", body[at : at + 2])[0]
            at += 2
            if qos == 1:
                self.send(ack(PUBACK, packet_id))
        if self.version == 5:
            at = _skip_properties(body, at)
        return topic, body[at:], qos, first & 1

    def expect_disconnect(self, *reasons):
        """DISCONNECT with one of these reasons, then the end; before MQTT 5 only the end."""
        if self.version == 5:
            body = self.expect(DISCONNECT)
            reason = body[0] if body else 0
            assert reason in reasons, f"{reason:#x}, not {[hex(r) for r in reasons]}"
        self.expect_end()

    def expect_end(self):
        got = self.recv()
        assert got is None, f"{got} came instead of the end of the connection"

    def ping(self):
        """Nothing else is on its way."""
        self.send(packet(0xC0))
        self.expect(PINGRESP)


def _skip_properties(body, at):
    length = shift = 0
    while True:
        byte = body[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return at + length


def properties_of(body):
    """The properties at the start of `body` as a list of (id, value); strings as bytes."""
    end = _skip_properties(body, 0)
    at = next(i for i in range(4) if body[i] < 0x80) + 1
    found = []
    while at < end:
        identifier, at = body[at], at + 1
        if identifier in (0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A):
            value, at = body[at], at + 1
        elif identifier in (0x13, 0x21, 0x22, 0x23):
            value, at = struct.unpack(">H", body[at : at + 2])[0], at + 2
        elif identifier in (0x02, 0x11, 0x18, 0x27):
            value, at = struct.unpack(">I", body[at : at + 4])[0], at + 4
        elif identifier == 0x26:
            name, at = _string(body, at)
            text, at = _string(body, at)
            value = (name, text)
        else:
            value, at = _string(body, at)
        found.append((identifier, value))
    return found


def _string(body, at):
    length = struct.unpack(">H", body[at : at + 2])[0]
    return body[at + 2 : at + 2 + length], at + 2 + length
