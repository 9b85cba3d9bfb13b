"""The data directory: who may use it, what of it is refused, and when there is none."""

import stat
import subprocess

import pytest

from broker import PATIENCE_SECS, PLAIN, QUELEA
from wire import Peer


def serve(data, *arguments, **options):
    """Runs a broker that is expected to give up at once."""
    command = [QUELEA, "serve", "--port=0", "--http=off", f"--data={data}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS, **options)


def test_a_directory_has_one_broker_at_a_time(start):
    broker = start()
    ran = serve(broker.data)
    assert ran.returncode == 1
    assert "in use by another process" in ran.stderr and "--data" in ran.stderr
    broker.restart()


def test_a_lock_file_that_is_deleted_lets_nobody_in(start):
    broker = start()
    (broker.data / "lock").unlink()
    ran = serve(broker.data)
    assert ran.returncode == 1
    assert "in use by another process" in ran.stderr


def test_the_number_of_shards_is_that_of_the_directory(start):
    broker = start(arguments=["--shards=3", "--workers=2"])
    assert sorted(path.name for path in broker.data.glob("shard-*")) == [
        "shard-000", "shard-001", "shard-002",
    ]
    broker.terminate()
    assert broker.wait() == 0
    ran = serve(broker.data, "--shards=5")
    assert ran.returncode == 1
    assert "must be 3, the fixed number of" in ran.stderr
    broker.arguments = ["--workers=7"]
    broker._launch()
    ready = broker.wait_for_log(lambda event: event.get("workers") == 3)
    assert ready["shards"] == 3


def test_a_broker_that_keeps_nothing_touches_no_directory(start):
    broker = start(arguments=["--durability=memory"])
    with Peer(broker.port()) as peer:
        peer.accepted(client_id="c", clean=False, properties=b"\x11\xff\xff\xff\xff")
        peer.subscribed("a", 1)
    assert not broker.data.exists()
    assert not any("quelea_log_" in name for name in broker.metrics())
    broker.terminate()
    assert broker.wait() == 0
    assert not broker.data.exists()


def test_a_rule_that_asks_for_more_than_memory_makes_a_log(start):
    broker = start(PLAIN + '[durability]\nlevel = "memory"\ntopics = ["alarms/#=fsync"]\n')
    assert broker.data.exists()


def test_a_directory_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    ran = serve(tmp_path / "file" / "data")
    assert ran.returncode == 2
    assert "--data DIR" in ran.stderr and "--durability memory" in ran.stderr


def test_what_is_in_the_directory_is_private(start):
    broker = start()
    assert stat.S_IMODE(broker.data.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "text, hint",
    [
        ('topics = ["a/#=dsk"]', "did you mean 'disk'"),
        ('topics = ["a/#b=disk"]', "'#' must be the last level"),
        ('level = "fsnyc"', "did you mean 'fsync'"),
        ('segment_bytes = "1MiB"', "packet_bytes_max"),
        ('log_bytes_max = "10MiB"', "4 segments"),
    ],
)
def test_contradictions_are_told_with_their_line(tmp_path, text, hint):
    config = tmp_path / "quelea.toml"
    config.write_text(f"[durability]\n{text}\n")
    ran = serve(tmp_path / "data", "--check-config", f"--config={config}")
    assert ran.returncode == 2
    assert f"{config}:2: durability." in ran.stderr or f"{config}:2:" in ran.stderr
    assert hint in ran.stderr, ran.stderr
    assert not (tmp_path / "data").exists()
