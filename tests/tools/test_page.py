"""The page of measurements and its charts are what the files in lab/results give."""

import json

import page
import pytest
import records


def test_the_page_and_its_charts_are_current():
    stale = [str(path.relative_to(page.ROOT)) for path in page.stale()]
    assert not stale, "run `make docs`"


def test_a_file_that_differs_is_stale(monkeypatch):
    monkeypatch.setattr(page, "peers_chart", lambda: "another chart")
    assert page.stale() == [page.CHARTS / "peers.svg"]


@pytest.mark.parametrize("name", records.suites())
def test_a_record_says_what_ran_and_its_rows_have_cells_in_order(name):
    record = records.read(name)
    assert record["suite"] == name and record["command"]
    for fact in ("commit", "commit_date", "date", "machine", "rounds"):
        assert fact in record
    for row in record["rows"]:
        assert row["of"], row
        for cell in row["cells"].values():
            known = [cell[one] for one in ("min", "median", "max") if cell[one] is not None]
            assert known and known == sorted(known) and "unit" in cell, row


def test_every_part_of_the_template_has_its_table():
    asked = [line.strip("{}") for line in page.TEMPLATE.read_text().splitlines() if "{{" in line]
    assert asked == [part.__name__ for part in page.PARTS]


def test_every_table_names_commit_and_date_of_its_records():
    text = page.PAGE.read_text()
    # A table of `routed` is there once it has been measured.
    for name in [name for name in page.MAKE if name != "routing-eg" or name in records.suites()]:
        record = records.read(name)
        assert f"[{name}.json]" in text and f"{record['commit']} ({record['commit_date']}" in text


def test_what_is_not_known_is_said_and_what_is_old_is_marked(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    known = {"command": "x", "rounds": 1, "machine": None, "rows": []}
    for suite, commit, day in (("peers", "abc", "2026-11-20"), ("siege", None, None)):
        records.write({"suite": suite, "commit": commit, "commit_date": day, "date": None, **known})
    records.write(
        {"suite": "new", "commit": "def", "commit_date": "2026-11-25", "date": None, **known}
    )
    old, unknown = [line for line in page.caption("peers", "siege") if line]
    assert "abc (2026-11-20, 5 days older), unknown machine, run: unknown" in old
    assert "unknown (unknown), unknown machine, run: unknown" in unknown


def test_the_best_other_broker_is_one_that_did_the_work():
    rows = [
        {"of": {"scenario": "S", "broker": broker}, "cells": {"cpu": {"median": cost}}, **more}
        for broker, cost, more in (
            ("quelea", 6.0, {}),
            ("mosquitto", 8.0, {}),
            ("loser", 1.0, {"shortcomings": ["lost"]}),
            ("quelea-memory", 3.0, {}),
        )
    ]
    record = {"rows": rows}
    assert page.compared(record, "cpu", scenario="S") == ["6.0", "8.0 mosquitto"]
    assert page.leaders(record) == {"S": (3.0, "mosquitto", 8.0)}


@pytest.mark.parametrize(
    ("value", "told"),
    [(5189637, "5,189,637"), (39.25, "39.3"), (0.3, "0.3"), (0.434, "0.43"), (1589.76, "1,590")],
)
def test_a_figure_has_three_digits_and_rounds_halves_up(value, told):
    assert records.figure(value) == told


def test_a_record_survives_its_file(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    row = records.row(
        {"scenario": "S"}, {"cpu": records.cell([3, 1, 2], "us"), "no": None}, ["late"]
    )
    record = records.record("s", "lab/s.py", 3, [row])
    records.write(record)
    assert records.read("s") == json.loads(json.dumps(record))
    assert row["cells"] == {"cpu": {"median": 2, "min": 1, "max": 3, "unit": "us"}}
    assert "| S | 2 (1-3) us | late |" in records.tables(record)


def test_the_page_of_examples_names_each_scenario_that_failed_and_what_it_lost():
    page_of_examples = (records.ROOT / "docs/flock/examples/README.md").read_text()
    rows = records.read("scenarios")["rows"]
    failed = [row for row in rows if not row["passed"]]
    assert f"{len(rows) - len(failed)} of {len(rows)} runs passed" in page_of_examples
    for row in failed:
        lost, expected = (records.median(row, name) for name in ("lost", "expected"))
        told = f"{row['of']['scenario']} did not pass: {lost:,} of {expected:,} messages were lost"
        assert told in page_of_examples
    assert not any(records.median(row, "lost") for row in rows if row["passed"])


def test_readme_and_changelog_quote_the_results_of_the_chart():
    peers = records.read("peers")
    readme = (records.ROOT / "README.md").read_text()
    assert "(docs/use/charts/peers.svg)" in readme
    assert f"commit {peers['commit']} ({peers['commit_date']})" in readme
    changelog = (records.ROOT / "CHANGELOG.md").read_text()
    assert f"commit {peers['commit']}" in changelog
    for load in ("MAX-1", "P2P-20K"):
        ours, other = page.compared(peers, "cpu", scenario=load)
        assert f"{ours} us" in changelog and f"{other.split()[0]} us" in changelog
