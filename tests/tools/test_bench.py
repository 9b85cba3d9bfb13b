"""What the benchmarks say of their runs, their charts, and what the suites name."""

from xml.etree import ElementTree

import bench
import chart
import pytest
import records
import runs
from chart import Panel
from runs import Cell


def second(at_secs=0, published=100, received=200, scheduled=100):
    return locals()


PHASES = [
    {"name": "connect", "from_secs": 0.0, "to_secs": 1.5},
    {"name": "publish", "from_secs": 1.5, "to_secs": 4.5},
    {"name": "drain", "from_secs": 4.5, "to_secs": 5.0},
]


def integrity(lost=0):
    return {"by_qos": [{"expected": 600, "lost": lost, "duplicated": 0, "reordered": 0}]}


def run(broker="quelea", cost=10.0, **changes):
    results = {
        "run": {"started_unix_ms": 1, "outcome": {"how": "completed"}},
        "scenario": {
            "id": "S",
            "title": "a scenario",
            "scale": 1.0,
            "clients": 9,
            "publishers": 5,
            "source": "",
        },
        "broker": {"name": broker, "version": "1.0", "cpus": "0-1"},
        "machine": {"cpu": "CPU", "cores": 4, "memory_bytes": 2**34, "kernel": "6.1"},
        "totals": {
            "connects_failed": 0,
            "connections_lost": 0,
            "subscribes_failed": 0,
            "publishes_scheduled": 300,
            "published": [0, 300, 0],
            "received": [0, 600, 0],
        },
        "series": [second(published=0, received=0, scheduled=0), second(), second(), second()],
        "latencies": [
            {"kind": "connect", "summary": {"count": 9, "p50_us": 1, "p99_us": 1}},
            {"kind": "end_to_end", "summary": {"count": 5, "p50_us": 1500, "p99_us": 20000}},
        ],
        "broker_load": {"memory_bytes_max": 12_500_000, "cpu_us_per_message": cost},
        "timers": [],
        "phases": PHASES,
        "integrity": integrity(),
        "validity": {"valid": True, "reasons": []},
        "errors": [],
    }
    return results | changes


LOST = integrity(3)


def rows(*results):
    return runs.rows({"S": {"quelea": Cell(list(results))}})


def test_a_cell_is_the_median_and_the_spread_of_its_rounds():
    [row] = rows(*(run(cost=cost) for cost in (30.0, 10.0, 14.0)))
    assert row["of"] == {"scenario": "S", "broker": "quelea"} and row["version"] == "1.0"
    assert row["cells"]["cpu"] == {"median": 14, "min": 10, "max": 30, "unit": "us"}
    assert {name: one["median"] for name, one in row["cells"].items()} == {
        "received": 200, "p50": 1.5, "p99": 20, "memory": 12.5, "cpu": 14,
    }  # fmt: skip


def test_what_was_lost_and_what_is_not_valid_is_said():
    validity = {"valid": False, "reasons": ["the tool was late"]}
    [row] = rows(run(integrity=LOST, validity=validity), run())
    assert row["remarks"] == ["3 lost", "the tool was late"]
    assert row["shortcomings"] == ["lost"]


def test_what_was_still_coming_when_the_wait_ended_is_not_called_lost():
    late = run(integrity=LOST, series=[second(4), second(5, received=7)])
    gone = run(integrity=LOST, series=[second(4), second(5, received=0)])
    assert Cell([late]).shortcomings() == [] and Cell([gone]).shortcomings() == ["lost"]
    assert Cell([late]).remarks() == ["3 had not come when the wait ended"]


def test_remarks_that_differ_in_figures_only_are_one():
    said = ["sent more than 1467 us late", "2 lost", "sent more than 1,665.5 us late", "lost"]
    told = ["sent more than 1467 us late (2 times)", "2 lost", "lost"]
    assert runs.alike(said) == told


def test_a_broker_without_results_is_a_row_with_the_reason():
    cells = {"quelea": Cell([run()]), "other": Cell(failures=["it does not start"])}
    _, row = runs.rows({"S": cells})
    assert (row["cells"], row["remarks"]) == ({}, ["it does not start"])
    assert row["shortcomings"] == ["failed"] and "version" not in row
    assert cells["other"].is_hopeless() and not cells["quelea"].is_hopeless()


def test_timers_stand_for_rates_also_if_a_round_has_none():
    timed = [[{"name": "drain", "summary": {"max_us": us}}] for us in (1000, 3000)]
    [row] = rows(*(run(timers=timers) for timers in [*timed, []]))
    assert list(row["cells"]) == ["drain", "memory", "cpu"]
    assert row["cells"]["drain"] == {"median": 2, "min": 1, "max": 3, "unit": "ms"}


def test_connections_are_told_where_there_are_no_messages():
    [row] = rows(
        run(
            totals=run()["totals"] | {"published": [0, 0, 0]},
            series=[{"connects": 0}, {"connects": 800}, {"connects": 1000}, {"connects": 900}],
            broker_load={"memory_bytes_per_connection": 712.4, "cpu_us_per_connect": 50.0},
        )
    )
    assert {name: one["median"] for name, one in row["cells"].items()} == {
        "connects": 900, "p50": 0.001, "p99": 0.001, "memory": 712.4, "cpu": 50,
    }  # fmt: skip


def test_a_run_without_figures_is_a_row_without_cells():
    [row] = rows(run(series=[], latencies=[], broker_load=None))
    assert list(row["cells"]) == ["received"]


@pytest.mark.parametrize(
    ("arrived", "share"),
    [
        # Of 500 deliveries due in two and a half of three seconds, 10 are the last of 5 publishers.
        ((0, 90, 200, 200), 0),
        ((0, 50, 200, 200), 40 / 500),
        # What comes after the last full second does not count.
        ((0, 0, 100, 100, 400), 290 / 500),
    ],
)
def test_behind_is_the_share_of_what_was_due_and_had_not_come(arrived, share):
    seconds = [second(at, received=count) for at, count in enumerate(arrived, 1)]
    results = run(series=seconds)
    assert runs.behind(results) == pytest.approx(share)
    said = Cell([results], paced=True).shortcomings()
    assert said == (["behind"] if share > runs.BEHIND_MAX else [])
    assert Cell([results], paced=False).shortcomings() == []


def test_the_reason_is_read_from_what_flock_prints():
    printed = "S against b\n### S\n\n| broker | x |\n|---|---|\n| b | it ended with 1 | | | |\n"
    assert runs.reason_in(printed, "b") == "it ended with 1"
    missing = "B is not installed: get it"
    assert runs.reason_in(f"S against b\n{missing}\n", "b") == missing
    assert runs.reason_in("", "b") == "no results"


@pytest.mark.parametrize("suite", bench.SUITES.values(), ids=list(bench.SUITES))
def test_a_suite_names_each_row_once_and_only_files_that_exist(suite):
    names = [row.name for row in suite.rows]
    assert len(names) == len(set(names))
    for path in [*(row.scenario for row in suite.rows), *suite.brokers]:
        assert "/" not in path or (bench.ROOT / path).is_file()


def test_a_suite_with_places_names_them_instead_of_the_scenario(monkeypatch):
    monkeypatch.setattr(records, "git", lambda *_: "abc")
    suite = bench.Suite([bench.Row("a", "S", of={"qos": "QoS 1"}), bench.Row("b", "S")], [])
    measured = {"a": {"quelea": Cell([run()])}, "b": {"quelea": Cell([run()])}}
    found = bench.record("x", suite, measured, ["other"], 1)
    assert [row["of"] for row in found["rows"]] == [
        {"qos": "QoS 1", "broker": "quelea"},
        {"scenario": "b", "broker": "quelea"},
    ]
    assert found["notes"] == ["Not installed: other"] and found["titles"]["b"] == "a scenario"


def test_a_chart_has_a_bar_for_each_value_and_words_for_the_others():
    bars = [("quelea", 0.43), ("slow", 43.0), ("leaky<", "lost")]
    picture = chart.chart("Costs", [Panel("A", "a & b", bars)], "here")
    tree = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    paper, *drawn = tree.findall(f"{svg}rect")
    words = [one.text for one in tree.findall(f"{svg}text")]
    assert [float(one.get("width")) for one in drawn] == [1.2, 120.0]
    assert [one.get("fill") for one in drawn] == [chart.OWN, chart.OTHER]
    labels = ["quelea", "0.43", "slow", "43.0", "leaky<", "lost"]
    assert words == ["Costs", "A", "a & b", *labels, "here"]
    bottom = max(float(one.get("y")) for one in tree.findall(f"{svg}text"))
    assert bottom < float(paper.get("height"))


def test_a_panel_without_values_has_no_bars():
    picture = chart.chart("Costs", [Panel("A", "", [("slow", "failed")])], "here")
    assert picture.count("<rect") == 1
    assert ">failed<" in picture
