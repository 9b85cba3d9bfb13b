"""Metrics of quelea and of flock before the linter that Prometheus itself brings, `promtool check metrics`."""

import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from broker import PATIENCE_SECS
from test_live_figures import FLOCK, SCENARIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

# Where tests/setup puts it.
OWN = Path(__file__).resolve().parent / ".prometheus" / "promtool"


@pytest.fixture
def complaints():
    """What promtool has against a page; empty if nothing."""
    program = shutil.which("promtool") or (str(OWN) if OWN.exists() else None)
    if program is None:
        pytest.skip("no promtool: tests/setup takes it out of the Debian package prometheus")

    def check(page):
        command = [program, "check", "metrics"]
        ended = subprocess.run(command, input=page, capture_output=True, text=True, timeout=60)
        said = ended.stdout + ended.stderr
        assert (ended.returncode == 0) == (said == ""), said
        return said

    return check


def test_promtool_finds_what_is_wrong(complaints):
    page = "# HELP a_total Of it.\n# TYPE a_total gauge\na_total 1\n"
    assert "a_total" in complaints(page)


def test_promtool_has_nothing_against_the_broker(plain, complaints):
    status, page = plain.get("/metrics")
    assert status == 200 and page.count("# TYPE ") > 50
    assert complaints(page) == ""


def test_promtool_has_nothing_against_a_running_load(plain, complaints, tmp_path):
    scenario = tmp_path / "live.toml"
    scenario.write_text(SCENARIO)
    (port,) = free_ports(1)
    command = [FLOCK, "run", scenario, "--broker", f"127.0.0.1:{plain.port()}", "--quiet"]
    command += ["--pid", str(plain.process.pid), "--prometheus", f"127.0.0.1:{port}"]
    command += ["--threads", "1", "--out", tmp_path, "--name", "live"]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        page = ""
        deadline = time.monotonic() + PATIENCE_SECS
        while 'flock_published_messages_total{qos="1"}' not in page:
            assert load.poll() is None and time.monotonic() < deadline, page
            time.sleep(0.02)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    page = answer.read().decode()
            except OSError:
                pass
    finally:
        load.kill()
        load.communicate()
    assert "flock_broker_memory_bytes" in page
    assert complaints(page) == ""
