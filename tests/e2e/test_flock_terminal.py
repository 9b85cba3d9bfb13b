"""flock on a terminal: it asks before it loads a broker that nobody named."""

import errno
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from broker import QUELEA

FLOCK = os.environ.get("FLOCK_BIN", str(Path(QUELEA).with_name("flock")))


class Terminal:
    """`flock` with a terminal of its own."""

    def __init__(self, folder, *arguments, columns=80):
        self.ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
        assert f"Start the load of 1 client on 127.0.0.1:{port}? " in terminal.text
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


def lines_of(text, columns):
    """The lines that a terminal of this width shows: it knows returns, wrapping and erasing."""
    lines, at, wraps = [""], 0, True
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.|\n", text.replace("\r\n", "\n")):
        if part == "\x1b[?7l":
            wraps = False
        elif part == "\x1b[?7h":
            wraps = True
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:at]
        elif part == "\r":
            at = 0
        elif part == "\n" or (at == columns and wraps):
            lines.append("" if part == "\n" else part)
            at = len(lines[-1])
        else:
            at = min(at, columns - 1)
            lines[-1] = lines[-1][:at] + part + lines[-1][at + 1 :]
            at += 1
    return lines


def test_progress_stays_on_one_line_of_a_narrow_terminal(plain, tmp_path):
    port = str(plain.port())
    arguments = ["conn", "-c", "1", "-h", "127.0.0.1", "-p", port, "--duration", "4s"]
    terminal = Terminal(tmp_path, *arguments, columns=60)
    while terminal.read():
        pass
    terminal.process.wait()
    terminal.close()
    assert terminal.text.count("conn 1/1") > 2, terminal.text
    shown = lines_of(terminal.text, 60)
    assert len([line for line in shown if "conn " in line and "pub " in line]) <= 1, shown
    assert not any(line.startswith("/s") or line.endswith(" recv") for line in shown), shown
