"""The counting program says what it has counted, and errs on the unflattering side."""

import json
import os
import socket
from pathlib import Path

import counts
import pytest
from counts import Failure, Load, Missed, Row


@pytest.mark.parametrize(
    ("wanted", "slow", "found"),
    [
        # On the line.
        (1.0, [(0.5, 8_000), (2.0, 11_000)], 9_000),
        # More turns than in both cost more than in both.
        (3.0, [(0.5, 8_000), (2.0, 11_000)], 13_000),
        # Fewer turns than in both: less is not claimed.
        (0.1, [(2.0, 11_000), (0.5, 8_000)], 8_000),
        # Nothing to draw a line through: the higher one, and at unknown waits.
        (0.5, [(0.9, 8_000), (1.0, 9_000)], 9_000),
        (0.5, [(0.9, 9_000), (1.0, 8_000)], 9_000),
        (0.5, [(0.9, 8_000)], 8_000),
        (None, [(0.5, 8_000), (2.0, 11_000)], 11_000),
    ],
)
def test_instructions_are_those_at_the_waits_of_full_rate(wanted, slow, found):
    assert counts.at_waits(wanted, slow) == found


def test_what_perf_could_not_count_is_unknown():
    text = "# started on\n\n7,,syscalls:sys_enter_read,1,100.00,,\n<not counted>,,b,0,0.00,,\n"
    text += "1.5,msec,task-clock,1,100.00,,\n"
    found = counts.counts_of(text, ["read", "all", counts.CPU])
    assert found == {"read": 7, "all": None, counts.CPU: 1.5}
    with pytest.raises(Failure, match="3 figures in place of 1"):
        counts.counts_of(text, ["read"])


def figures(monkeypatch, sums):
    monkeypatch.setattr(counts, "available_calls", lambda: ["epoll_wait", "read", "write"])
    sums = {counts.CPU: 10.0, counts.SWITCHES: 50, **sums}
    return counts.figures(sums, messages=100, secs=0.5)


def test_every_call_is_counted_once(monkeypatch):
    sums = {"epoll_wait": 150, "read": 100, "write": 80, "eventfd_write": 30, "all": 400}
    found = {name: value for name, (value, _) in figures(monkeypatch, sums).items()}
    # A write to an eventfd is one of the writes; the rest has no name.
    named = {name: found[name] for name in ("epoll_wait", "read", "write", "eventfd_write")}
    assert named == {"epoll_wait": 1.5, "read": 1.0, "write": 0.5, "eventfd_write": 0.3}
    assert found["calls"] == 4.0 and found["other_calls"] == pytest.approx(0.7)
    assert found["waits"] == 1.5 and found["switches"] == 0.5 and found["rate"] == 200
    assert found["cpu_with_perf"] == pytest.approx(100) and found["cores"] == pytest.approx(0.02)


def test_an_unknown_call_leaves_the_rest_unknown(monkeypatch):
    sums = {"epoll_wait": 150, "read": None, "write": 80, "eventfd_write": 30, "all": 400}
    found = figures(monkeypatch, sums)
    assert found["read"][0] is None and "other_calls" not in found
    found = figures(monkeypatch, {**sums, "epoll_wait": None})
    assert found["waits"][0] is None, "not 0, which would make instructions fewer"


def test_a_run_behind_its_rate_says_so():
    sums = {"instructions": 1000, "epoll_wait": 50}
    for rate, wanted in ((100, ""), (200, ", behind 200/s")):
        remark = counts.slow_remark(Load(100, rate), sums, 100, 1.0)
        assert remark == f"callgrind: 10 at 100/s{wanted}, 0.50 waits"


def test_a_listener_of_another_process_does_not_count():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert counts.listens(os.getpid(), port) and not counts.listens(1, port)


ROW = Row("R", "", counts.pairs(10), Load(100), (Load(100),))


def results(arrived, lost=0, duplicated=0):
    totals = {"received": [0, arrived, 0], "connects_failed": 0, "connections_lost": 0}
    by_qos = [{"lost": lost, "duplicated": duplicated}]
    return {"totals": totals, "integrity": {"by_qos": by_qos}}


def test_messages_count_if_all_arrived_once():
    assert counts.received(results(100), ROW, Load(100)) == 100
    for bad in (results(99, lost=1), results(101, duplicated=1), results(100, duplicated=1)):
        with pytest.raises(Failure, match="of 100 messages arrived"):
            counts.received(bad, ROW, Load(100))


def test_a_window_that_misses_a_part_of_the_load_has_no_figures():
    phases = [("publish", 4.0, 6.0), ("drain", 6.0, 7.0), ("after", 7.0, 9.0)]
    run = {
        "run": {"started_unix_ms": 1_000_000},
        "phases": [{"name": name, "from_secs": a, "to_secs": b} for name, a, b in phases],
    }
    window = counts.Window()
    for begun, ended, is_whole in ((1003, 1008, True), (1005, 1008, False), (1003, 1006.5, False)):
        window.begun, window.ended = begun, ended
        if is_whole:
            window.check(run)
        else:
            with pytest.raises(Missed):
                window.check(run)


def test_rows_show_calls_that_some_broker_makes():
    found = {
        "quelea": {"rate": (10.0, "msg/s"), "futex": (2.0, "/msg"), "brk": (0.001, "/msg")},
        "mosquitto": {"rate": (10.0, "msg/s"), "futex": (0.0, "/msg"), "brk": (0.0, "/msg")},
    }
    measured = {ROW: {name: [(one, [])] for name, one in found.items()}}
    made = {row["of"]["broker"]: row["cells"] for row in counts.rows_of(measured)}
    assert made["quelea"]["futex"]["median"] == 2.0 and made["mosquitto"]["futex"]["median"] == 0
    assert "brk" not in made["quelea"]
    # What failed is not 0.
    failed = {ROW: {"quelea": [({}, ["system calls unknown: x"])]}}
    [row] = counts.rows_of(failed)
    assert row["cells"] == {} and row["remarks"] == ["system calls unknown: x"]


def test_brokers_are_started_as_flock_starts_them(tmp_path):
    quelea = tmp_path / "quelea"
    quelea.write_text("")
    quelea.chmod(0o755)
    made = counts.describe("quelea-1", "disk", tmp_path)
    assert made.program == str(quelea) and made.environment["QUELEA_durability__level"] == "disk"
    command = " ".join(made.command)
    assert "--workers 1" in command and command.endswith("--shards 1") and "{dir}" in command
    assert counts.describe("quelea", "disk", Path("/nowhere")) is None


def test_the_rows_are_loads_of_the_scenario_in_whole_messages():
    text = counts.SCENARIO.read_text()
    for row in counts.ROWS:
        assert all(f"{name} = " in text for name in row.params), row.name
        assert all(load.messages % row.params["publishers"] == 0 for load in (row.load, *row.slow))
        assert json.dumps(row.params) and row.brokers
