"""A disk that is slow, or stands still when a test wants it to: see `slow_sync.c`."""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from broker import eventually


@cache
def _library():
    directory = Path(tempfile.mkdtemp(prefix="quelea-slow-sync-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "slow_sync.so"
    source = Path(__file__).with_name("slow_sync.c")
    command = ["cc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def delayed(ms):
    """What is to be in the environment of a broker whose syncs take so much longer."""
    return {"LD_PRELOAD": _library(), "SYNC_DELAY_MS": str(ms)}


class Gate:
    """Lets the syncs of a broker pass one by one, once it is shut."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-gate-"))
        self.environment = {"LD_PRELOAD": _library(), "SYNC_GATE": str(self.directory)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open()

    def begun(self):
        """How many syncs have begun."""
        try:
            return int((self.directory / "begun").read_text())
        except FileNotFoundError:
            return 0

    def shut(self):
        """None that begins from now on is done."""
        self._release(self.begun())

    def wait_for(self, number):
        """Until the sync of this number has begun."""
        eventually(lambda: self.begun() >= number, f"sync {number}")

    def release(self, number):
        """Lets the syncs up to this one pass."""
        self._release(number)

    def open(self):
        """All pass."""
        (self.directory / "released").unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _release(self, number):
        draft = self.directory / "draft"
        draft.write_text(str(number))
        os.replace(draft, self.directory / "released")
