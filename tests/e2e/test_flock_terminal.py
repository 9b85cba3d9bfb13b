"""flock on a terminal: it asks before it loads a broker that nobody named."""

import errno
import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest

from broker import QUELEA

FLOCK = os.environ.get("FLOCK_BIN", str(Path(QUELEA).with_name("flock")))


class Terminal:
    """`flock` with a terminal of its own."""

    def __init__(self, folder, *arguments):
        self.ours, its = pty.openpty()
        self.process = subprocess.Popen(
            [FLOCK, *arguments, "--out", str(folder)], stdin=its, stdout=its, stderr=its
        )
        os.close(its)
        self.text = ""

    def read(self):
        """More of the output; false at its end."""
        try:
            more = os.read(self.ours, 65536)
        except OSError as error:
            # Linux reports the end of the other side so.
            assert error.errno == errno.EIO
            return False
        self.text += more.decode()
        return bool(more)

    def until(self, words):
        while words not in self.text:
            assert self.read(), self.text

    def answer(self, line):
        """Types a line, and returns what follows and the exit code."""
        before = len(self.text)
        os.write(self.ours, f"{line}\n".encode())
        while self.read():
            pass
        return self.text[before:], self.process.wait()

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def asked(tmp_path):
    """A command that asks, with a port on which nobody listens while the test runs."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        terminal = Terminal(tmp_path, "conn", "-c", "1", "-p", str(port))
        terminal.until("[y/N] ")
        assert f"Start the load of 1 clients on 127.0.0.1:{port}? " in terminal.text
        yield terminal, port
        terminal.close()


@pytest.mark.parametrize("answer", ["n", "", "maybe"])
def test_nothing_starts_without_a_yes(asked, answer):
    terminal, port = asked
    said, code = terminal.answer(answer)
    assert code == 2, said
    assert "not started: name the broker with" in said and "--yes" in said
    assert "no broker listens" not in said


@pytest.mark.parametrize("answer", ["y", "YES"])
def test_a_yes_starts_the_load(asked, answer):
    terminal, port = asked
    said, code = terminal.answer(answer)
    assert code == 2, said
    assert f"no broker listens on 127.0.0.1:{port}: start it" in said
    assert "name the broker with" not in said
