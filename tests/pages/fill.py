"""Makes many sessions quickly: raw sockets, a few hundred at a time."""

import selectors
import socket
import struct

# Connections that are under way at a time.
AT_A_TIME = 200


def text(value):
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def packet(kind, body):
    length, size = bytearray(), len(body)
    while True:
        size, low = divmod(size, 128)
        length.append(low | (128 if size else 0))
        if not size:
            return bytes([kind]) + bytes(length) + body


def connect(client_id, expiry_secs=86_400, keep_alive=0):
    """A CONNECT of MQTT 5 for a session that outlives its connection."""
    properties = bytes([5, 0x11]) + struct.pack(">I", expiry_secs)
    head = text("MQTT") + bytes([5, 0]) + struct.pack(">H", keep_alive) + properties
    return packet(0x10, head + text(client_id))


def subscribe(filters, qos=1):
    body = struct.pack(">H", 1) + b"\0" + b"".join(text(name) + bytes([qos]) for name in filters)
    return packet(0x82, body)


def publish(topic, payload, retain=False):
    return packet(0x31 if retain else 0x30, text(topic) + b"\0" + payload)


DISCONNECT = b"\xe0\x00"


def fill(port, count, name="device-{:06}", filters=lambda number: [f"site/{number % 97}/#"]):
    """Opens and leaves `count` sessions, each with subscriptions."""
    left = iter(range(count))
    selector = selectors.DefaultSelector()
    done = 0

    def begin():
        number = next(left, None)
        if number is None:
            return
        peer = socket.create_connection(("127.0.0.1", port))
        peer.sendall(connect(name.format(number)) + subscribe(filters(number)))
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_READ, bytearray())

    for _ in range(AT_A_TIME):
        begin()
    while selector.get_map():
        ready = selector.select(30)
        assert ready, "the broker does not answer"
        for key, _ in ready:
            data = key.fileobj.recv(4096)
            assert data, f"closed after {bytes(key.data)}"
            key.data.extend(data)
            # CONNACK with success, then SUBACK.
            assert key.data[:1] == b"\x20" and key.data[3] == 0, bytes(key.data)
            if key.data[2 + key.data[1] :][:1] != b"\x90":
                continue
            key.fileobj.sendall(DISCONNECT)
            selector.unregister(key.fileobj)
            key.fileobj.close()
            done += 1
            begin()
    assert done == count
