"""A broker of mosquitto as a bridge: what is published on one side arrives once on the other."""

import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

from broker import PATIENCE_SECS, eventually, sum_of
from wire import Peer, fresh, publish


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def bridged(broker, directory, protocol):
    """The port of a mosquitto that has a bridge for `#` to the broker."""
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        f"connection bridge\naddress 127.0.0.1:{broker.port()}\n"
        f"bridge_protocol_version {protocol}\nrestart_timeout 1\ntopic # both 1\n"
    )
    process = subprocess.Popen(
        ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
        eventually(lambda: sum_of(broker, "quelea_subscriptions") == 1, "the bridge's #")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_SECS)


@pytest.mark.parametrize("protocol", ["mqttv31", "mqttv311"])
def test_a_bridge_of_mosquitto_gets_no_echo_and_keeps_retain_flags(start, tmp_path, protocol):
    broker = start()
    with bridged(broker, tmp_path, protocol) as port:
        topic = fresh("bridged")
        here = Peer(broker.port()).accepted(client_id="here")
        there = Peer(port).accepted(client_id="there")
        here.subscribed(topic)
        there.subscribed(topic)
        there.send(publish(topic, b"from there"))
        assert here.message()[1] == b"from there"
        # An echo would come before this one.
        here.send(publish(topic, b"from here", retain=True))
        assert [there.message()[1] for _ in range(2)] == [b"from there", b"from here"]
        # It was retained there, too.
        late = Peer(port).accepted(client_id="late")
        late.subscribed(topic)
        assert late.message()[1::2] == (b"from here", 1)
        for peer in (here, there, late):
            peer.close()
