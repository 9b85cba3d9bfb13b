"""A short siege: who attacks is refused, bounded, and forgotten; who behaves notices nothing.

`make siege` is the long one, with times.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "siege"))

import siege

CASES = [
    "unfinished-connects",
    "unfinished-connects-many",
    "connects-just-below",
    "fire-and-close",
    "wrong-passwords",
    "wrong-passwords-held",
    "refused-ids",
    "half-requests",
    "silent-connections",
    "half-upgrades",
    "scram-guesses",
    "come-and-go",
    "takeovers",
    "filters-repeated",
    "filters-many",
    "retained-loop",
    "retained-in-vain",
    "pings-unread",
    "subscribes-unread",
    "publishes-unread",
    "groups",
    "overlapping-filters",
    "deep-topics",
    "many-subscriptions-come-and-go",
    "retained-replaced",
    "unfinished-publishes",
    "unfinished-publishes-many",
    "unfinished-publishes-small",
    "wills-with-properties",
    "long-client-ids",
    "long-filters",
]


@pytest.mark.parametrize("name", CASES)
def test_it_holds(name):
    outcome = siege.besiege(name, is_short=True)
    assert not outcome.findings, outcome
    seen = outcome.pair["phases"]["attack"]
    assert seen["received"] > 0, "the pair was at work meanwhile"
