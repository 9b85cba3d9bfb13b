"""A stand-in for Azure Event Hubs in front of Kafka: it knows old versions of few requests, and
closes the connection on all others, as on ApiVersions 4."""

import contextlib
import socket
import struct
import threading

API_VERSIONS = 18
# The newest version of each request that it knows.
NEWEST = {0: 7, 1: 6, 2: 1, 3: 5, 10: 1, 17: 1, API_VERSIONS: 3, 22: 1, 36: 1}


class Hub:
    def __init__(self, port, behind):
        self.behind = behind
        self.listener = socket.create_server(("127.0.0.1", port))
        self.seen, self.closed_on = set(), set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def close(self):
        self.listener.close()

    def serve(self, client):
        with client, socket.create_connection(self.behind) as server:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    request = read_frame(client)
                    api, version = struct.unpack_from(">hh", request)
                    if version > NEWEST.get(api, -1):
                        self.closed_on.add((api, version))
                        return
                    self.seen.add((api, version))
                    write_frame(server, request)
                    answer = read_frame(server)
                    write_frame(client, old_versions(answer) if api == API_VERSIONS else answer)


def read_exactly(stream, count):
    found = b""
    while len(found) < count:
        more = stream.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def read_frame(stream):
    return read_exactly(stream, struct.unpack(">i", read_exactly(stream, 4))[0])


def write_frame(stream, frame):
    stream.sendall(struct.pack(">i", len(frame)) + frame)


def old_versions(answer):
    """The answer to ApiVersions 3, with nothing that the stand-in does not know."""
    correlation, error, size = struct.unpack_from(">ihB", answer)
    at, ranges = 7, []
    assert error == 0 and size < 0x80, (error, size)
    for _ in range(size - 1):
        api, oldest, newest, _tags = struct.unpack_from(">hhhB", answer, at)
        at += 7
        if api in NEWEST:
            ranges.append(struct.pack(">hhhB", api, oldest, min(newest, NEWEST[api]), 0))
    head = struct.pack(">ihB", correlation, 0, len(ranges) + 1)
    return head + b"".join(ranges) + struct.pack(">iB", 0, 0)
