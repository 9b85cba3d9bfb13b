"""The table writer of the benchmarks."""

import bench
import pytest


def run(broker="quelea", scenario="S", cost=10.0, **changes):
    second = {"published": 100, "received": 200}
    results = {
        "run": {"started_unix_ms": 1},
        "scenario": {"id": scenario, "title": "a scenario"},
        "broker": {"name": broker, "version": "1.0", "cpus": "0-1"},
        "machine": {"cpu": "CPU", "cores": 4, "memory_bytes": 2**34, "kernel": "6.1"},
        "series": [{"published": 0, "received": 0}, second, second, second],
        "latencies": [
            {"kind": "connect", "summary": {"count": 9, "p50_us": 1, "p99_us": 1}},
            {"kind": "end_to_end", "summary": {"count": 5, "p50_us": 1500, "p99_us": 20000}},
        ],
        "broker_load": {"memory_bytes_max": 12_500_000, "cpu_us_per_message": cost},
        "timers": [],
        "integrity": {"by_qos": [{"lost": 0, "duplicated": 0, "reordered": 0}]},
        "validity": {"valid": True, "reasons": []},
    }
    return results | changes


def row(lines, broker):
    found = [line for line in lines if line.startswith(f"| {broker} ")]
    assert len(found) == 1
    return [one.strip() for one in found[0].strip("|").split("|")]


def test_a_cell_is_the_median_and_the_spread_of_its_rounds():
    lines = bench.table([run(cost=cost) for cost in (30.0, 10.0, 14.0)], "floor")
    assert row(lines, "quelea") == [
        "quelea 1.0", "200 (200-200)", "1.50 (1.50-1.50)", "20.00 (20.00-20.00)",
        "12.5 (12.5-12.5)", "14.00 (10.00-30.00)", "-", "",
    ]  # fmt: skip


def test_the_ratio_is_that_of_the_medians_within_the_scenario():
    runs = [run(cost=20.0), run("floor", cost=8.0), run("floor", "other", cost=1.0)]
    lines = bench.table(runs, "floor")
    assert row(lines, "quelea")[6] == "2.50"
    assert [line for line in lines if line.startswith("**")] == [
        "**S**: a scenario",
        "**other**: a scenario",
    ]


def test_what_was_lost_and_what_is_not_valid_is_said():
    integrity = {"by_qos": [{"lost": 3, "duplicated": 0, "reordered": 0}]}
    validity = {"valid": False, "reasons": ["the tool | was late"]}
    lines = bench.table([run(integrity=integrity, validity=validity), run()], "floor")
    assert row(lines, "quelea")[-1] == "3 lost; the tool / was late"


def test_stopwatches_stand_for_rates_also_if_a_round_has_none():
    timed = [[{"name": "drain", "summary": {"max_us": us}}] for us in (1000, 3000)]
    lines = bench.table([run(timers=timers) for timers in [*timed, []]], "floor")
    assert lines[2].startswith("| broker | drain ms | MB | CPU us per message |")
    assert row(lines, "quelea")[1:3] == ["2.0 (1.0-3.0)", "12.5 (12.5-12.5)"]


def test_a_run_without_figures_is_a_row_all_the_same():
    lines = bench.table([run(series=[], latencies=[], broker_load=None)], "floor")
    assert row(lines, "quelea")[1:] == ["0", "-", "-", "-", "-", "-", ""]


def test_only_what_stands_between_the_markers_is_replaced():
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n"
    once = bench.between_markers(text, "x", ["new", ""])
    assert once == text.replace("old", "new")
    assert bench.between_markers(once, "x", ["new"]) == once


def test_a_document_without_the_markers_is_left_alone():
    with pytest.raises(ValueError, match="x: begin"):
        bench.between_markers("a\n", "x", [])


@pytest.mark.parametrize("name", bench.SUITES)
def test_the_document_has_the_markers_of_every_suite(name):
    assert "line" in bench.between_markers(bench.DOCUMENT.read_text(), name, ["line"])


def test_every_scenario_and_description_that_is_named_exists():
    for suite in bench.SUITES.values():
        for path in [*suite.scenarios, *suite.brokers]:
            assert "/" not in path or (bench.ROOT / path).is_file()
