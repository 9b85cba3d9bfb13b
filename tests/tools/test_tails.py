"""What the tails say of their runs."""

import tails


def run(tail_us, **changes):
    summary = {"count": 9, "p50_us": 80, "p99_us": 200, "p999_us": tail_us, "max_us": 9000}
    results = {
        "latencies": [{"kind": "end_to_end", "summary": summary}],
        "totals": {
            "connects_failed": 0,
            "connections_lost": 0,
            "subscribes_failed": 0,
            "published": [0, 9, 0],
            "received": [0, 9, 0],
        },
        "run": {"outcome": {"how": "completed"}},
        "series": [],
        "integrity": {"by_qos": []},
        "validity": {"valid": True, "reasons": []},
        "errors": [],
        "metrics": {},
    }
    return results | changes


def storm(tail_us, connects):
    series = [{"connects": count} for count in connects]
    return run(tail_us, disturbance={"series": series})


def test_a_tail_is_a_multiple_of_the_quiet_one_of_its_round():
    quiet = [run(1000), run(4000), run(500)]
    disturbed = [storm(tail, [0, 9000, 0]) for tail in (2000, 4000, 2000)]
    rows = tails.rows({("quiet", "quelea"): quiet, ("storm", "quelea"): disturbed})
    before, during = (row["cells"] for row in rows)
    assert before["p99.9"] == {"median": 1, "min": 0.5, "max": 4, "unit": "ms"}
    assert "p99.9_ratio" not in before
    assert during["p99.9_ratio"] == {"median": 2, "min": 1, "max": 4, "unit": "x"}
    assert [row["of"]["disturbance"] for row in rows] == ["none, 200 pairs", "connect storm"]


def test_the_rate_of_a_storm_is_that_of_its_typical_second():
    assert tails.nature("storm", [storm(1, [0, 100, 9000, 9100, 0])]) == "9,000 connects/s"


def test_what_the_broker_says_of_itself_is_told():
    metrics = {"quelea_worker_turn_seconds_max": 0.0015, "quelea_publishes_queued_total": 1234}
    assert tails.nature("quiet", [run(1, metrics=metrics)]) == "longest turn 1.5 ms"
    told = tails.nature("stopped", [run(1, metrics=metrics)])
    assert told == "1,234 messages waited for it; longest turn 1.5 ms"
    assert tails.nature("stopped", [run(1)]) == ""


def test_a_run_that_is_not_valid_says_so():
    late = run(1, validity={"valid": False, "reasons": ["the tool was late"]})
    [row] = tails.rows({("quiet", "quelea"): [late]})
    assert row["remarks"] == ["the tool was late"]


def test_every_case_is_held_against_one_that_comes_before_it():
    keys = list(tails.CASES)
    for key, case in tails.CASES.items():
        if case.quiet:
            assert keys.index(case.quiet) < keys.index(key)
            quiet = tails.CASES[case.quiet]
            assert quiet.pairs == case.pairs and set(case.brokers) <= set(quiet.brokers)
