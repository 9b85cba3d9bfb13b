"""Ports for servers that cannot choose one themselves."""

import itertools
import os
import socket
from pathlib import Path

FIRST, LAST = 10_000, 65_535
PER_PROCESS = 97
_given = itertools.count(os.getpid() * PER_PROCESS)


def free_ports(count):
    """Ports at which nobody listens, below those that the kernel gives out, so that no client's
    end of a connection takes one before the server has started."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = end if end > FIRST else LAST
    found = []
    while len(found) < count:
        port = FIRST + next(_given) % (end - FIRST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    return found
