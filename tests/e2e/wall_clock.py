"""A wall clock that a test sets while a broker runs: see `wall_clock.c`."""

import os
import shutil
import tempfile
from pathlib import Path

from preload import library


class WallClock:
    """The one of the brokers that are started with its environment."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-wall-clock-"))
        self._path = self.directory / "ahead"
        self.environment = {"LD_PRELOAD": library("wall_clock"), "WALL_CLOCK": str(self._path)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)

    def set(self, secs_ahead):
        """From now on it shows so much more than the right time."""
        draft = self.directory / "draft"
        draft.write_text(str(secs_ahead))
        os.replace(draft, self._path)
