"""The rounds of `tests/cluster`, tried on one node without engines.

`make cluster-test` is what they are for.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

import rounds

TRY = ["--single", "--rounds", "1", "--seed", "1", "--fault", "kill_and_start"]


def test_a_broker_that_keeps_its_promises_passes():
    done, failure = rounds.carry_out(rounds.options_from(TRY))
    assert failure is None, failure
    assert len(done) == 1 and done[0].without_service > 0


def test_a_broker_that_forgets_is_caught(monkeypatch):
    # What is missing is missing for good.
    monkeypatch.setattr(rounds, "MISSING_QUIET_SECS", 1)
    forgetful = [*TRY, "--level", "memory", "--files", "never"]
    _, failure = rounds.carry_out(rounds.options_from(forgetful))
    assert failure is not None and "session forgotten" in failure, failure
