"""A short siege: who attacks is refused, bounded, and forgotten; who behaves notices nothing.

`make siege` is the long one, with times.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab/siege"))

import siege

# The first test waits for all cases, which takes some minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

# Not in the short form: they are others in small, or take longer than it has.
LONG_ONLY = {
    "retained-loop-read",
    "retained-large",
    "wills-at-the-limit",
    "deep-filters",
    "slow-acknowledgements",
    "tls-handshakes",
    "retained-many",
    "retained-replaced",
    "expired-messages",
    "auth-long",
    "pubrels",
    "one-shard",
    "overlapping-identifiers",
    "ws-pings-strange",
    "fire-and-close-short",
    "filters-many",
    "unsubscribes-unread",
    "half-closed",
    "packet-maximum-below",
    "wills-denied",
    "http-trickle",
    "tls-trickle",
    "log-hog",
    "many-addresses",
    "many-users-56",
    "many-users-64",
    "many-users-160",
    "many-users-240",
    "tenant-crowd-memory",
}
SHORT = [name for name in siege.CASES if name not in LONG_ONLY]


@pytest.fixture(scope="module")
def outcomes(request):
    """Of the cases that this run has asked for, one after the other on the same broker."""
    asked = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path and hasattr(item, "callspec")]  # fmt: skip
    return siege.besiege_shortly(asked)


@pytest.mark.parametrize("name", SHORT)
def test_it_holds(outcomes, name):
    outcome = outcomes[name]
    assert not outcome.findings, outcome
    seen = outcome.pair["phases"]["attack"]
    assert seen["received"] > 0, "the pair was at work meanwhile"


def test_a_run_that_is_cut_off_leaves_what_it_has(tmp_path, monkeypatch):
    def besiege(name, **_):
        if name == "pings":
            raise KeyboardInterrupt
        return siege.Outcome(name)

    monkeypatch.setattr(siege, "besiege", besiege)
    monkeypatch.setattr(siege.records, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["siege.py", "groups", "pings", "--results"])
    with pytest.raises(KeyboardInterrupt):
        siege.main()
    found = siege.records.read("siege")
    assert [row["of"]["case"] for row in found["rows"]] == ["groups"]
    assert found["asked"] == 2
