"""The broker runs under valgrind, which counts its instructions, and the lab counts with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker import QUELEA, ROOT
from wire import PUBACK, Peer, fresh, publish

sys.path.insert(0, str(ROOT / "lab"))

import counts

FLOCK = Path(os.environ.get("FLOCK_BIN", Path(QUELEA).with_name("flock")))
needs_valgrind = pytest.mark.skipif(
    not shutil.which("valgrind"), reason="valgrind is not installed: apt-get install valgrind"
)


@needs_valgrind
def test_it_serves_under_valgrind(start):
    # It starts in a few seconds, and stops with the journals closed.
    broker = start(within=("valgrind", "--tool=none", "--quiet"))
    topic = fresh()
    with Peer(broker.port()).accepted() as subscriber, Peer(broker.port()).accepted() as publisher:
        subscriber.subscribed(topic, 1)
        publisher.send(publish(topic, b"counted", qos=1, packet_id=7))
        publisher.expect(PUBACK)
        assert subscriber.message()[1] == b"counted"
    broker.terminate()
    assert broker.wait() == 0


@needs_valgrind
@pytest.mark.skipif(not shutil.which("perf"), reason="perf is not installed")
@pytest.mark.skipif(
    os.geteuid() != 0 or counts.tracepoints() is None,
    reason="only root can count system calls, where tracefs is mounted",
)
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core is for the broker, another for the load"
)
def test_the_lab_counts_instructions_and_calls_of_a_message(tmp_path):
    (tmp_path / "quelea").symlink_to(QUELEA)
    (tmp_path / "flock").symlink_to(FLOCK)
    command = [sys.executable, ROOT / "lab/counts.py", "--programs", tmp_path, "--scale", "0.1"]
    command += ["--rows", "ONE-1", "--brokers", "quelea"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "the machine is too busy" in done.stdout:
        pytest.skip("the machine is too busy to count")
    heads, row = (line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| "))
    cells = dict(zip(heads, row, strict=True))
    count = {
        name: float(cells[name].split()[0].replace(",", ""))
        for name in ("instructions", "recvfrom", "sendto")
    }
    # A PUBLISH and a PUBACK in, the same out.
    assert count["instructions"] > 1000
    assert 2 <= count["recvfrom"] < 4.5 and 1.5 < count["sendto"] < 2.5, done.stdout
