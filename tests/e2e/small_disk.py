"""A small file system of its own, in a mount namespace that needs no right of root."""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """Mounted on `at` for whoever runs `within` it. `seen` is the same directory from outside."""

    def __init__(self, at, options):
        self.at = Path(at)
        self.at.mkdir()
        mount = f'mount -t tmpfs -o {options} tmpfs "{self.at}" && echo mounted && exec cat'
        self._owner = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._owner.stdout.readline() != b"mounted\n":
            self.close()
            pytest.skip("this machine does not let us mount a small file system")
        self.within = [
            "nsenter", "-t", str(self._owner.pid), "-U", "-m", "--preserve-credentials", "--",
        ]  # fmt: skip
        self.seen = Path(f"/proc/{self._owner.pid}/root{self.at}")
        self.data = self.at / "data"
        self.seen_data = self.seen / "data"
        self._fillers = []

    def fill(self):
        """Another program takes all space that is left, to the last byte."""
        path = self.seen / f"filler-{len(self._fillers)}"
        self._fillers.append(path)
        for size in (1 << 16, 4096, 1):
            with open(path, "ab", buffering=0) as file:
                self._until_full(lambda: file.write(b"x" * size))

    def fill_inodes(self):
        """The same with all files that there may be."""

        def make():
            path = self.seen / f"filler-{len(self._fillers)}"
            path.touch()
            self._fillers.append(path)

        self._until_full(make)

    def free(self):
        for path in self._fillers:
            path.unlink(missing_ok=True)
        self._fillers = []

    def files(self):
        """Content of the small files, by name."""
        small = [path for path in self.seen_data.rglob("*") if path.suffix != ".log"]
        return {
            str(path.relative_to(self.seen_data)): path.read_bytes()
            for path in small
            if path.is_file()
        }

    def close(self):
        self._owner.stdin.close()
        self._owner.wait()
        self._owner.stdout.close()

    @staticmethod
    def _until_full(write):
        while True:
            try:
                write()
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def may_mount():
    return shutil.which("unshare") is not None and shutil.which("nsenter") is not None
