"""A disk that is slow, or stands still when a test wants it to: see `slow_sync.c`."""

import os
import shutil
import tempfile
from pathlib import Path

from broker import eventually
from preload import library


def delayed(ms):
    """What is to be in the environment of a broker whose syncs take so much longer."""
    return {"LD_PRELOAD": library("slow_sync"), "SYNC_DELAY_MS": str(ms)}


class Gate:
    """Lets the syncs of a broker pass one by one, once it is shut. `thread`: the end of the name of
    the threads whose syncs are meant, if not those that commit."""

    def __init__(self, thread=None):
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-gate-"))
        self.environment = {"LD_PRELOAD": library("slow_sync"), "SYNC_GATE": str(self.directory)}
        self.environment |= {"SYNC_THREAD": thread} if thread else {}

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
