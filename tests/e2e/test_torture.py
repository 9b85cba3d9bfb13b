"""A short torture: SIGKILL under load, and what was acknowledged is there.

`make torture` is the long one.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab/torture"))

import torture

SHORT = ["--kills", "3", "--seed", "1", "--life-secs", "0.2", "1.0"]


@pytest.mark.parametrize("level", ["disk", "fsync"])
def test_nothing_acknowledged_is_lost_by_kills(level):
    verdict = torture.torture(level, torture.options_from(SHORT))
    assert verdict.is_clean, str(verdict)
    assert verdict.counts["Killed"] >= 3
    assert verdict.counts["owed"] > 0 and verdict.counts["retained checked"] > 0
    assert verdict.counts["wills promised"] > 0


def test_at_memory_the_same_kills_lose_messages_and_are_caught():
    options = torture.options_from([*SHORT, "--kills", "1", "--files", "never"])
    verdict = torture.torture("memory", options)
    assert {"lost", "session forgotten"} <= set(verdict.findings), str(verdict)
