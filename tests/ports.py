"""Ports for servers that cannot choose one themselves."""

import contextlib
import itertools
import os
import socket
from pathlib import Path

FIRST, LAST = 10_000, 65_535

# Where a broker listens that was told nothing else: a developer's may be running there.
DEFAULTS = [1883, 8883, 8083, 8084, 9883]
PER_PROCESS = 97
_given = itertools.count(os.getpid() * PER_PROCESS)


def free_ports(count):
    """Ports at which nobody listens, below those that the kernel gives out, so that no client's
    end of a connection takes one before the server has started."""
    first_of_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    end = int(first_of_kernel) if int(first_of_kernel) > FIRST else LAST
    found = []
    for _ in range(FIRST, end):
        if len(found) == count:
            return found
        port = FIRST + next(_given) % (end - FIRST)
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    raise OSError(f"no {count} free ports between {FIRST} and {end}: end what listens there")


def free_port():
    return free_ports(1)[0]


@contextlib.contextmanager
def defaults_taken():
    """The default ports are taken meanwhile, by us or by whoever has them: a test that needs one
    fails on every machine."""
    with contextlib.ExitStack() as taken:
        for address in itertools.product(["127.0.0.1", "::1"], DEFAULTS):
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            with contextlib.suppress(OSError):
                taken.enter_context(socket.create_server(address, family=family))
        yield
