"""Workers move between threads as the load comes and goes; nobody must notice."""

import signal
import time
from pathlib import Path

from broker import PATIENCE_SECS, eventually, sum_of
from wire import PINGRESP, PUBACK, Peer, fresh, packet, publish

# Enough that some live on each worker.
SUBSCRIBERS = 8


def has_said(broker, text, seen=0):
    return any(text in event["message"] for event in broker.log[seen:])


def is_stopped(pid):
    """All threads are: what is sent from now on stays in the sockets."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def test_a_busy_broker_spreads_over_its_threads_and_comes_together_again(start):
    broker = start(arguments=("--workers=2", "--log-level=debug"))
    topic = fresh()
    subscribers = [Peer(broker.port()).accepted(client_id=fresh("s")) for _ in range(SUBSCRIBERS)]
    for subscriber in subscribers:
        subscriber.subscribed(topic, 1)
    publisher = Peer(broker.port()).accepted(client_id=fresh("p"))
    sent = []

    def deliver():
        sent.append(str(len(sent)).encode())
        publisher.send(publish(topic, sent[-1], qos=1, packet_id=len(sent)))
        publisher.expect(PUBACK)
        for subscriber in subscribers:
            assert subscriber.message()[1] == sent[-1]

    deliver()
    # Messages for nobody, as fast as they are taken, until the one thread has too much to do.
    flood = publish(fresh("nobody"), b"x" * 16) * 10_000
    deadline = time.monotonic() + PATIENCE_SECS
    with Peer(broker.port()).accepted() as busy:
        while not has_said(broker, "a worker gets its own thread"):
            busy.send(flood)
            assert time.monotonic() < deadline, broker.log_text()
        deliver()
    broker.wait_for_log(lambda event: "a worker moves to the main thread" in event["message"])
    deliver()
    broker.terminate()
    assert broker.wait() == 0
    for peer in (publisher, *subscribers):
        peer.expect_disconnect(0x8B)
        peer.close()


def test_a_broker_stops_while_its_workers_are_apart(start):
    broker = start(arguments=("--workers=4", "--log-level=debug"))
    flood = publish(fresh("nobody"), b"x" * 16) * 10_000
    deadline = time.monotonic() + PATIENCE_SECS
    with Peer(broker.port()).accepted() as busy:
        while not has_said(broker, "a worker gets its own thread"):
            busy.send(flood)
            assert time.monotonic() < deadline, broker.log_text()
    broker.terminate()
    assert broker.wait() == 0


def test_mqtt_3_1_2_22_a_stopped_broker_hears_who_spoke_meanwhile(start):
    """SIGSTOP, and SIGCONT when each keep-alive is over: the PINGREQs lie in the sockets."""
    broker = start(arguments=("--workers=2",))
    will = (fresh("will"), b"gone", 0, False)
    clients = [
        Peer(broker.port()).accepted(client_id=fresh("c"), keep_alive=3, will=will)
        for _ in range(20)
    ]
    watcher = Peer(broker.port()).accepted(client_id=fresh("w"))
    watcher.subscribed(will[0])
    broker.process.send_signal(signal.SIGSTOP)
    eventually(lambda: is_stopped(broker.process.pid), "the standstill")
    for client in clients:
        client.send(packet(0xC0))
    # The cause, not a wait for an effect: one and a half keep-alives pass, and more.
    time.sleep(6)
    broker.process.send_signal(signal.SIGCONT)
    for client in clients:
        client.expect(PINGRESP)
        client.ping()
    watcher.ping()
    assert sum_of(broker, "quelea_keep_alive_timeouts_total") == 0
    for client in (*clients, watcher):
        client.close()
