"""A real Kafka for all tests, and the example `kafka_send` of the crate `targets` as its client."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from certificates import Authority  # noqa: E402
from server import Kafka  # noqa: E402

BINARIES = Path(os.environ.get("QUELEA_BIN", ROOT / "target/debug/quelea")).resolve().parent
SEND = BINARIES / "examples/kafka_send"


@pytest.fixture(scope="session")
def jars():
    """The directory of Kafka's jars. Without Java or Maven there is none."""
    done = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no Kafka: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka_of_all(jars, tmp_path_factory, authority):
    server = Kafka(tmp_path_factory.mktemp("kafka"), jars, authority)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def kafka(kafka_of_all):
    """It runs, whatever an earlier test has left of it."""
    if kafka_of_all.child.poll() is not None:
        kafka_of_all.start()
    return kafka_of_all


class Sender:
    """A running `kafka_send`."""

    def __init__(self, server, *options, permit="127.0.0.0/8"):
        command = [SEND, "--servers", server, *options]
        if permit:
            command += ["--permit", permit]
        self.child = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.shown = ""

    def wait_for(self, accepted):
        """Until this many records are accepted."""
        self.wait_until(lambda line: line.get("accepted", 0) >= accepted)

    def wait_for_first(self, kind):
        """Until a record has an outcome of this kind."""
        self.wait_until(lambda line: line.get("first") == kind)

    def wait_for_failures(self):
        """Until more records have failed than so far. On a busy machine some do while all is well."""
        shown = [json.loads(line).get("failed", 0) for line in self.shown.splitlines()]
        self.wait_until(lambda line: line.get("failed", 0) > max(shown, default=0))

    def wait_until(self, is_it):
        for line in self.child.stdout:
            self.shown += line
            if is_it(json.loads(line)):
                return
        raise AssertionError(f"it ended: {self.shown}{self.child.stderr.read()}")

    def summary(self):
        out, err = self.child.communicate(timeout=300)
        self.shown += out + err
        assert self.child.returncode == 0, self.shown
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def send(kafka):
    """Starts senders, which end with the test."""
    senders = []

    def start(*options, listener="PLAIN", server=None, **named):
        sender = Sender(server or kafka.address(listener), *options, **named)
        senders.append(sender)
        return sender

    yield start
    for sender in senders:
        sender.child.kill()
        sender.child.wait()
