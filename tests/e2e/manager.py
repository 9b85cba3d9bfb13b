"""A service manager for a broker: the socket of `sd_notify`, and one thread that stands still."""

import ctypes
import os
import socket
import tempfile
import threading
from pathlib import Path

from broker import eventually

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000


class Manager:
    """Collects the messages of a broker that has `environment`."""

    def __init__(self, watchdog_secs=None, is_abstract=False):
        self.messages = []
        name = tempfile.mktemp(prefix="quelea-notify-")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name if is_abstract else name)
        self._path = None if is_abstract else Path(name)
        self.environment = {"NOTIFY_SOCKET": "@" + name if is_abstract else name}
        if watchdog_secs:
            self.environment["WATCHDOG_USEC"] = str(int(watchdog_secs * 1e6))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                message = self._socket.recv(65536).decode()
            except OSError:
                return
            if message == "":
                return
            lines = [line.split("=", 1) for line in message.split("\n")]
            self.messages.append({key: value for key, value in lines})

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._path:
            self._path.unlink()

    def wait_for(self, wanted, seen=0):
        """The place behind the first message after `seen` for which `wanted(message)` holds."""
        def found():
            for place in range(seen, len(self.messages)):
                if wanted(self.messages[place]):
                    return place + 1
            return None

        return eventually(found, f"a message behind {self.messages[seen:]}")

    def message(self, wanted, seen=0):
        return self.messages[self.wait_for(wanted, seen) - 1]


class Frozen:
    """The threads of a process with this name do not run."""

    def __init__(self, pid, name):
        tasks = Path(f"/proc/{pid}/task")
        self._threads = [
            int(task.name) for task in tasks.iterdir()
            if (task / "comm").read_text().strip() == name
        ]
        assert self._threads, name
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _ptrace(self, request, thread):
        null = ctypes.c_void_p(0)
        if self._libc.ptrace(request, ctypes.c_long(thread), null, null) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}")

    def __enter__(self):
        for thread in self._threads:
            self._ptrace(PTRACE_SEIZE, thread)
            self._ptrace(PTRACE_INTERRUPT, thread)
            os.waitpid(thread, WALL)
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            self._ptrace(PTRACE_DETACH, thread)
