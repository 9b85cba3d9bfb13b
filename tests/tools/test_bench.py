"""The table writer of the benchmarks, and what its suites name."""

from xml.etree import ElementTree

import bench
import bench_chart
import bench_tables
import pytest
from bench_tables import Cell


def second(at_secs=0, published=100, received=200):
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
        "series": [second(published=0, received=0), second(), second(), second()],
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
NO_MARKS = {}


def row(lines, broker):
    found = [line for line in lines if line.startswith(f"| {broker} ")]
    assert len(found) == 1
    return [one.strip() for one in found[0].strip("|").split("|")]


def tables(*runs, unit="floor"):
    return bench_tables.tables({"S": {"quelea": Cell(list(runs))}}, unit)


def summary(measured, marks=NO_MARKS, own="quelea"):
    brokers = list(dict.fromkeys(one for cells in measured.values() for one in cells))
    lines = bench_tables.summary(measured, brokers, "mosquitto", lambda row: own, marks)
    # The first of its tables, that of costs.
    return lines[: lines.index("Received per second:")]


def test_a_cell_is_the_median_and_the_spread_of_its_rounds():
    lines = tables(*(run(cost=cost) for cost in (30.0, 10.0, 14.0)))
    assert row(lines, "quelea") == [
        "quelea 1.0", "200 (200-200)", "1.50 (1.50-1.50)", "20.00 (20.00-20.00)",
        "12.5 (12.5-12.5)", "14.00 (10.00-30.00)", "-", "",
    ]  # fmt: skip


def test_the_ratio_is_that_of_the_medians_within_the_row():
    measured = {
        "S": {"quelea": Cell([run(cost=20.0)]), "floor": Cell([run("floor", cost=8.0)])},
        "other": {"floor": Cell([run("floor", cost=1.0)])},
    }
    lines = bench_tables.tables(measured, "floor")
    assert row(lines, "quelea")[6] == "2.50"
    assert [line for line in lines if line.startswith("**")] == [
        "**S**: a scenario",
        "**other**: a scenario",
    ]


def test_what_was_lost_and_what_is_not_valid_is_said():
    validity = {"valid": False, "reasons": ["the tool | was late"]}
    lines = tables(run(integrity=LOST, validity=validity), run())
    assert row(lines, "quelea")[-1] == "3 lost; the tool / was late"


def test_what_was_still_coming_when_the_wait_ended_is_not_called_lost():
    late = run(integrity=LOST, series=[second(4), second(5, received=7)])
    gone = run(integrity=LOST, series=[second(4), second(5, received=0)])
    assert Cell([late]).shortcomings() == [] and Cell([gone]).shortcomings() == ["lost"]
    assert Cell([late]).remarks() == ["3 had not come when the wait ended"]


def test_remarks_that_differ_in_figures_only_are_one():
    said = ["sent more than 1467 us late", "2 lost", "sent more than 1,665.5 us late", "lost"]
    told = ["sent more than 1467 us late (2 times)", "2 lost", "lost"]
    assert bench_tables.alike(said) == told


def test_a_broker_without_results_is_a_row_with_the_reason():
    cells = {"quelea": Cell([run()]), "other": Cell(failures=["it does not start"])}
    lines = bench_tables.tables({"S": cells}, "quelea")
    assert row(lines, "other") == ["other", "-", "-", "-", "-", "-", "-", "it does not start"]
    assert cells["other"].is_hopeless() and not cells["quelea"].is_hopeless()


def test_stopwatches_stand_for_rates_also_if_a_round_has_none():
    timed = [[{"name": "drain", "summary": {"max_us": us}}] for us in (1000, 3000)]
    lines = tables(*(run(timers=timers) for timers in [*timed, []]))
    assert lines[2].startswith("| broker | drain ms | MB | CPU us per message |")
    assert row(lines, "quelea")[1:3] == ["2.0 (1.0-3.0)", "12.5 (12.5-12.5)"]


def test_connections_are_told_where_there_are_no_messages():
    def of(cost):
        return run(
            totals=run()["totals"] | {"published": [0, 0, 0]},
            series=[{"connects": 0}, {"connects": 800}, {"connects": 1000}, {"connects": 900}],
            broker_load={"memory_bytes_per_connection": 712.4, "cpu_us_per_connect": cost},
        )

    measured = {"S": {"quelea": Cell([of(50.0)]), "other": Cell([of(40.0)])}}
    lines = bench_tables.tables(measured, "other")
    assert row(lines, "quelea") == [
        "quelea 1.0", "900", "0.00", "0.00", "712", "50.0", "1.25", "",
    ]  # fmt: skip


def test_a_run_without_figures_is_a_row_all_the_same():
    lines = tables(run(series=[], latencies=[], broker_load=None))
    assert row(lines, "quelea")[1:] == ["0", "-", "-", "-", "-", "-", ""]


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
    assert bench_tables.behind(results) == pytest.approx(share)
    said = Cell([results], paced=True).shortcomings()
    assert said == (["behind"] if share > bench_tables.BEHIND_MAX else [])
    assert Cell([results], paced=False).shortcomings() == []


def test_the_best_is_the_cheapest_that_delivered_everything():
    cells = {
        "quelea": Cell([run(cost=6.0)]),
        "mosquitto": Cell([run(cost=8.0)]),
        "loser": Cell([run(cost=1.0, integrity=LOST)]),
    }
    lines = summary({"S": cells})
    assert row(lines, "S") == ["S", "**6.00**", "8.00", "1.00 (lost)", "0.75 x mosquitto"]


def test_where_ours_is_not_the_best_the_best_is_bold_all_the_same():
    cells = {"quelea": Cell([run(cost=9.0)]), "mosquitto": Cell([run(cost=6.0)])}
    assert row(summary({"S": cells}), "S")[1:] == ["9.00", "**6.00**", "1.50 x mosquitto"]


def test_variants_of_ours_are_no_others():
    cells = {"quelea": Cell([run(cost=9.0)]), "quelea-memory": Cell([run(cost=3.0)])}
    cells["mosquitto"] = Cell([run(cost=6.0)])
    lines = summary({"S": cells}, own="quelea-memory")
    assert row(lines, "S")[-1] == "0.50 x mosquitto"


def test_a_mark_is_as_far_from_the_unit_as_on_the_other_machine():
    measured = {"S": {"mosquitto": Cell([run(cost=30.0)])}, "T": {"quelea": Cell([run()])}}
    lines = summary(measured, {"S": {"mosquitto": 15.0, "FlashMQ": 1.5}})
    assert row(lines, "S")[-1] == "*3.00*"
    assert row(lines, "T")[-1] == "-"


def test_a_grid_has_a_line_per_payload_and_a_column_per_qos_and_broker():
    measured = {
        "a": {"quelea": Cell([run(cost=2.0)]), "mosquitto": Cell([run(cost=4.0)])},
        "b": {"quelea": Cell([run(cost=3.0)]), "mosquitto": Cell(failures=["gone"])},
    }
    places = {"a": ("MQTT 5", "QoS 0", "16 B"), "b": ("MQTT 5", "QoS 1", "16 B")}
    lines = bench_tables.grid(measured, ["quelea", "mosquitto"], places)
    assert lines[0] == "**MQTT 5**"
    assert lines[4] == "| 16 B | **2.00**, 200/s | 4.00, 200/s | **3.00**, 200/s | failed |"


def test_the_reason_is_read_from_what_flock_prints():
    printed = "S against b\n### S\n\n| broker | x |\n|---|---|\n| b | it ended with 1 | | | |\n"
    assert bench_tables.reason_in(printed, "b") == "it ended with 1"
    missing = "B is not installed: get it"
    assert bench_tables.reason_in(f"S against b\n{missing}\n", "b") == missing
    assert bench_tables.reason_in("", "b") == "no results"


def test_only_what_stands_between_the_markers_is_replaced():
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n<!-- y: end -->\n"
    once = bench_tables.between_markers(text, "x", ["new", ""])
    assert once == text.replace("old", "new")
    assert bench_tables.between_markers(once, "x", ["new"]) == once


def test_a_document_without_the_markers_is_left_alone():
    with pytest.raises(ValueError, match="x: begin"):
        bench_tables.between_markers("a\n", "x", [])


@pytest.mark.parametrize("name", [*bench.SUITES, "memory", "scaling", "tails"])
def test_the_document_has_the_markers_of_every_table(name):
    assert "line" in bench_tables.between_markers(bench.DOCUMENT.read_text(), name, ["line"])


@pytest.mark.parametrize("suite", bench.SUITES.values(), ids=list(bench.SUITES))
def test_a_suite_names_each_row_once_and_only_files_that_exist(suite):
    names = [row.name for row in suite.rows]
    assert len(names) == len(set(names))
    assert set(suite.marks) <= set(names)
    for path in [*(row.scenario for row in suite.rows), *suite.brokers]:
        assert "/" not in path or (bench.ROOT / path).is_file()


def test_a_picture_has_a_bar_for_each_that_did_the_work_and_words_for_the_others():
    cells = {
        "quelea": Cell([run(cost=0.43)]),
        "slow": Cell([run(cost=43.0)]),
        "leaky<": Cell([run(cost=1.0, integrity=LOST)]),
    }
    brokers = ["quelea", "slow", "leaky<", "elsewhere"]
    picture = bench_chart.chart("Costs", {"A": cells}, {"A": "a & b"}, brokers, "here")
    tree = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    paper, *bars = tree.findall(f"{svg}rect")
    words = [one.text for one in tree.findall(f"{svg}text")]
    assert [float(one.get("width")) for one in bars] == [1.4, 140.0]
    assert bars[0].get("fill") == bench_chart.OWN
    assert bars[1].get("fill") == bench_chart.OTHER
    assert words == [
        *["Costs", "A", "a & b", "quelea", "0.43", "slow", "43.0"],
        *["leaky<", "lost", "elsewhere", "not measured", "here"],
    ]
    bottom = max(float(one.get("y")) for one in tree.findall(f"{svg}text"))
    assert bottom < float(paper.get("height"))


def test_a_row_without_any_sound_run_has_no_bars():
    cells = {"slow": Cell([], ["it crashed"])}
    picture = bench_chart.chart("Costs", {"A": cells}, {"A": ""}, ["slow"], "here")
    assert picture.count("<rect") == 1
    assert ">failed<" in picture


def test_the_core_rows_are_drawn():
    assert all(row.about for row in bench.SUITES["peers"].rows)
