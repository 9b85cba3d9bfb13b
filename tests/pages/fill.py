"""Makes many sessions quickly: raw sockets, a few hundred at a time. `fill.py PORT COUNT`."""

import selectors
import socket
import struct
import sys

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


def connect(client_id, expiry_secs=86_400, keep_alive=0, more=b""):
    """A CONNECT of MQTT 5 for a session that outlives its connection."""
    properties = bytes([5 + len(more), 0x11]) + struct.pack(">I", expiry_secs) + more
    head = text("MQTT") + bytes([5, 0]) + struct.pack(">H", keep_alive) + properties
    return packet(0x10, head + text(client_id))


def subscribe(filters, qos=1):
    body = struct.pack(">H", 1) + b"\0" + b"".join(text(name) + bytes([qos]) for name in filters)
    return packet(0x82, body)


def publish(topic, payload, retain=False):
    return packet(0x31 if retain else 0x30, text(topic) + b"\0" + payload)


DISCONNECT = b"\xe0\x00"


def filter_of_tenth(number):
    """Every tenth client subscribes: nine have a session only."""
    return [f"site/{number % 97}/#"] if number % 10 == 9 else []


def fill(port, count, name="device-{:06}", filters=filter_of_tenth):
    """Opens and leaves `count` sessions."""
    left = iter(range(count))
    selector = selectors.DefaultSelector()
    done = 0

    def begin():
        number = next(left, None)
        if number is None:
            return
        peer = socket.create_connection(("127.0.0.1", port))
        wanted = filters(number)
        last = subscribe(wanted) if wanted else b""
        peer.sendall(connect(name.format(number)) + last)
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_READ, (bytearray(), bool(wanted)))

    for _ in range(AT_A_TIME):
        begin()
    while selector.get_map():
        ready = selector.select(30)
        assert ready, "the broker does not answer"
        for key, _ in ready:
            data = key.fileobj.recv(4096)
            answers, subscribes = key.data
            assert data, f"closed after {bytes(answers)}"
            answers.extend(data)
            # CONNACK with success, then SUBACK.
            assert answers[:1] == b"\x20" and answers[3] == 0, bytes(answers)
            if subscribes and answers[2 + answers[1] :][:1] != b"\x90":
                continue
            key.fileobj.sendall(DISCONNECT)
            selector.unregister(key.fileobj)
            key.fileobj.close()
            done += 1
            begin()
    assert done == count


if __name__ == "__main__":
    fill(int(sys.argv[1]), int(sys.argv[2]))
