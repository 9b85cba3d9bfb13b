"""The broker under a service manager: sd_notify, watchdog, signals."""

import signal
import threading

import pytest

from broker import PLAIN, Broker
from manager import Frozen, Manager
from preload import library
from wire import PUBACK, Peer, publish


@pytest.fixture
def manage():
    """Makes service managers that end with the test."""
    managers = []

    def make(**options):
        managers.append(Manager(**options))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_manager_hears_of_start_reload_and_stop(start, manage, is_abstract):
    manager = manage(is_abstract=is_abstract)
    broker = start(environment=manager.environment)
    seen = manager.wait_for(lambda message: "READY" in message)
    assert [message for message in manager.messages if "READY" in message] == [
        {"READY": "1", "STATUS": "ready; connections: 0"}
    ]
    # Whoever is told READY can connect.
    with Peer(broker.port()) as peer:
        peer.accepted()
        seen = manager.wait_for(lambda message: "connections: 1" in message["STATUS"], seen)
    broker.process.send_signal(signal.SIGHUP)
    reloading = manager.wait_for(lambda message: "RELOADING" in message, seen)
    assert int(manager.messages[reloading - 1]["MONOTONIC_USEC"]) > 0
    seen = manager.wait_for(lambda message: message.get("READY") == "1", reloading)
    broker.terminate()
    assert broker.wait() == 0
    stopping = manager.message(lambda message: message.get("STOPPING") == "1", seen)
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 10_000_000, "shutdown_grace_secs"


def test_a_wrong_socket_hinders_nothing(start):
    broker = start(environment={"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "1000"})
    with Peer(broker.port()) as peer:
        peer.accepted()
    broker.reload()
    broker.terminate()
    assert broker.wait() == 0


def test_a_start_that_reads_long_logs_tells_its_progress(start, manage, tmp_path):
    config = PLAIN + "[server]\nshards = 1\n"
    broker = start(config, data=tmp_path / "data")
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number in range(16):
            peer.send(publish(f"a/{number}", "x" * 500_000, qos=1, packet_id=1, retain=True))
            peer.expect(PUBACK)
    broker.terminate()
    assert broker.wait() == 0

    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "shut").touch()
    manager = manage()
    environment = {
        "LD_PRELOAD": library("slow_read"), "READ_GATE": str(gate), "READ_COUNT": "2",
        **manager.environment,
    }

    def progress(message):
        return message["STATUS"].startswith("reading the logs: ")

    def open_when_it_is_told():
        seen = manager.wait_for(progress)
        manager.wait_for(progress, seen)
        (gate / "shut").unlink()

    opener = threading.Thread(target=open_when_it_is_told)
    opener.start()
    start(config, data=tmp_path / "data", environment=environment)
    opener.join()
    ready = manager.wait_for(lambda message: "READY" in message)
    first, second = [message for message in manager.messages[:ready] if progress(message)][:2]
    assert int(first["EXTEND_TIMEOUT_USEC"]) > 0 and int(second["EXTEND_TIMEOUT_USEC"]) > 0
    read, _, of = second["STATUS"].removeprefix("reading the logs: ").split(" ")[:3]
    assert 0 < int(read) < int(of)
    assert "READY" not in first and "READY" not in second


def is_fed(message):
    return message.get("WATCHDOG") == "1"


def test_an_idle_broker_feeds_the_watchdog(start, manage):
    manager = manage(watchdog_secs=0.4)
    start(environment=manager.environment)
    seen = manager.wait_for(lambda message: "READY" in message)
    for _ in range(5):
        seen = manager.wait_for(is_fed, seen)


def test_a_stuck_worker_stops_the_watchdog(start, manage):
    manager = manage(watchdog_secs=2)
    broker = start(environment=manager.environment)
    with Peer(broker.port()) as peer:
        peer.accepted()
        manager.wait_for(is_fed)
        with Frozen(broker.process.pid, "worker-0"):
            # A turn that was under way may have been counted just before.
            seen = manager.wait_for(lambda message: "no progress" in message.get("STATUS", ""))
            assert not any(is_fed(message) for message in manager.messages[seen:])
            # The others still run, and say so.
            assert broker.get("/healthz")[0] == 200
            assert not any(is_fed(message) for message in manager.messages[seen:])
        manager.wait_for(is_fed, seen)
        peer.ping()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE"])
def test_signals_during_the_start_do_not_end_it(start, manage, tmp_path, name):
    config = PLAIN + "[server]\nshards = 1\n"
    broker = start(config, data=tmp_path / "data")
    broker.terminate()
    assert broker.wait() == 0
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "shut").touch()
    manager = manage()
    made = []

    class Starting(Broker):
        def _wait_until_ready(self):
            made.append(self.process)
            super()._wait_until_ready()

    def signal_and_open():
        manager.wait_for(lambda message: "reading the logs" in message["STATUS"])
        made[0].send_signal(getattr(signal, name))
        (gate / "shut").unlink()

    sender = threading.Thread(target=signal_and_open)
    sender.start()
    environment = {
        "LD_PRELOAD": library("slow_read"), "READ_GATE": str(gate), "READ_COUNT": "0",
        **manager.environment,
    }
    broker = Starting(config, data=tmp_path / "data", environment=environment)
    try:
        sender.join()
        with Peer(broker.port()) as peer:
            peer.accepted()
        if name == "SIGHUP":
            # One that came during the start is a reload after it.
            manager.wait_for(lambda message: "RELOADING" in message)
    finally:
        broker.stop()
