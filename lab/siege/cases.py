"""The table of attacks. A case is a function that attacks, entered by the decorator `case`.

It runs in a process of its own and gets a `Field`: where the broker is, how long to go on, and
whether this is the short form. What it returns, numbers by name, goes to the report and to the
`expect` of its case, which names what the broker should have done and has not.
"""

import dataclasses
import socket
import time
import urllib.request

import wire

# How long one call to the broker may take before the attack goes on without its answer.
PATIENCE_SECS = 5


@dataclasses.dataclass
class Case:
    name: str
    about: str
    attack: object
    # Of the configuration, behind the frame's own.
    config: str
    # The broker's peak; none: its limit.
    peak_mib: int | None
    # It leaves so much behind that others cannot be tried on the same broker.
    alone: bool
    # `expect(outcome)`: what is wrong beyond what is wrong in any case, as lines.
    expect: object


CASES = {}


def case(name, about, config="", peak_mib=None, alone=False, expect=lambda outcome: []):
    def enter(attack):
        assert name not in CASES, name
        CASES[name] = Case(name, about, attack, config, peak_mib, alone, expect)
        return attack

    return enter


@dataclasses.dataclass
class Field:
    """What an attack knows of the broker."""

    # Of the listener that admits everybody, and of the one that wants a password.
    open_port: int
    closed_port: int
    http_port: int
    ws_port: int
    tls_port: int
    # It expects the header of a proxy.
    proxy_port: int
    # It takes namespaces from user names, where a case has configured it.
    tenants_port: int
    secs: float
    is_short: bool
    until: float = 0.0

    def __post_init__(self):
        self.begin()

    def begin(self):
        """The time begins now: what had to be there first is there."""
        self.until = time.monotonic() + self.secs

    def goes_on(self):
        return time.monotonic() < self.until

    def pick(self, full, short):
        return short if self.is_short else full

    def wait(self):
        """Holds what there is until the time is over."""
        time.sleep(max(0.0, self.until - time.monotonic()))

    def dial(self, port, source=1):
        """A connection from 127.0.0.2, .3, .4 and so on, by `source`; None where it is refused.

        The well-behaved clients come from 127.0.0.1, which is `source` 0.
        """
        address = f"127.0.{(source + 1) >> 8}.{(source + 1) & 0xFF}"
        try:
            stream = socket.create_connection(("127.0.0.1", port), PATIENCE_SECS, (address, 0))
        except OSError:
            return None
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def metrics(self):
        """By name with labels; none where the broker does not answer."""
        try:
            url = f"http://127.0.0.1:{self.http_port}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECS) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        lines = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def client(self, source=1, port=None, **options):
        """A client that is logged in, at the open port; None where it is refused."""
        stream = self.dial(port or self.open_port, source)
        if stream is None:
            return None
        peer = wire.Peer(stream)
        try:
            if peer.connect(**options)[1] == 0:
                return peer
        except (OSError, AssertionError):
            pass
        peer.close()
        return None


def push(stream, data):
    """Sends as much as the broker takes; how many bytes that were."""
    view, sent = memoryview(data), 0
    try:
        while sent < len(view):
            sent += stream.send(view[sent : sent + (1 << 16)])
    except OSError:
        pass
    return sent


def is_cut(stream):
    """Has the broker closed this connection, with an answer or without?"""
    stream.setblocking(False)
    try:
        while True:
            if not stream.recv(1 << 16):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
