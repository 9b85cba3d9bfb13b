"""Fixtures: brokers of the test's own making, and one plain broker shared by all."""

import subprocess

import pytest

import certificates
from broker import QUELEA, Broker


@pytest.fixture(scope="session")
def _shared():
    broker = Broker()
    yield broker
    broker.stop()


@pytest.fixture
def plain(_shared, request):
    """A broker without any configuration to speak of, shared: use fresh names."""
    before = len(_shared.log)
    yield _shared
    _tell(request, _shared.log[before:])


@pytest.fixture
def start(request):
    """Starts brokers that end with the test: `start(config, files)`."""
    brokers = []

    def make(*arguments, **options):
        brokers.append(Broker(*arguments, **options))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.stop()
        _tell(request, broker.log)


@pytest.fixture(scope="session")
def passwords(tmp_path_factory):
    """A password file with the users anna (secret) and bruno (geheim)."""
    path = tmp_path_factory.mktemp("passwords") / "passwords"
    for user, password in (("anna", "secret"), ("bruno", "geheim")):
        command = [QUELEA, "passwd", "--scram", "-b", str(path), user, password]
        subprocess.run(command, check=True)
    return path.read_text()


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    """A directory with a certificate authority, and certificates of a server and of clients."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


def _tell(request, events):
    """The broker's log, beside the failure of its test."""
    report = getattr(request.node, "report", None)
    if report is not None and report.failed:
        print("log of the broker:")
        for event in events[-200:]:
            print("  ", event)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        item.report = report
