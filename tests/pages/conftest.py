"""A browser, brokers, and a page that fails its test when it breaks a rule of the browser."""

import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import certificates
from broker import QUELEA, Broker

CONFIG = """
[[listeners]]
name = "devices"
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
url = "ws://127.0.0.1:0"
allow_anonymous = true
[listeners.websocket]
origins = ["*"]
[durability]
level = "memory"
[limits]
connections_per_second_max = "unlimited"
[log]
client_lines_per_second_max = 10
[api]
listen = "http"
password_file = "{dir}/users"
operators = ["otto"]
"""
SESSIONS = 100_000

# What a browser writes to the console when a request fails. Tests of such requests expect it.
REQUEST_FAILED = "Failed to load resource"


@pytest.fixture(scope="session")
def users(tmp_path_factory):
    """A password file of the API: vera views, otto operates."""
    path = tmp_path_factory.mktemp("users") / "users"
    for name in ("vera", "otto"):
        subprocess.run([QUELEA, "passwd", "-b", str(path), name, "secret"], check=True)
    return path.read_text()


def pytest_collection_modifyitems(items):
    """Tests that need many sessions come last: these are made while the others run."""
    items.sort(key=lambda item: "full" in item.fixturenames)


@pytest.fixture(scope="session", autouse=True)
def filling(request, users):
    """A broker that gets very many sessions, and what makes them."""
    if not any("full" in item.fixturenames for item in request.session.items):
        yield None
        return
    broker = Broker(CONFIG, {"users": users})
    script = Path(__file__).with_name("fill.py")
    filler = subprocess.Popen([sys.executable, script, str(broker.port()), str(SESSIONS)])
    yield broker, filler
    filler.kill()
    filler.wait()
    broker.stop()


@pytest.fixture
def full(filling):
    """The broker with very many sessions, shared by tests that change little."""
    broker, filler = filling
    assert filler.wait() == 0
    return broker


@pytest.fixture
def start():
    """Starts brokers that run until the tabs of the test are closed: a tab whose broker ends
    first still asks it."""
    started = []

    def make(*arguments):
        started.append(Broker(*arguments))
        return started[-1]

    yield make
    for broker in started:
        broker.stop()


@pytest.fixture
def empty(users, start):
    return start(CONFIG, {"users": users})


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "chromium is missing: tests/setup pages"
    with sync_playwright() as playwright:
        # Tests may run as root in a container, where the sandbox cannot be made.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Dashboard:
    """A tab, and what went wrong in it."""

    def __init__(self, context, broker, scheme):
        self.broker, self.context = broker, context
        self.origin = f"{scheme}://127.0.0.1:{broker.port(scheme)}"
        self.faults, self.failed = [], []
        self.page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message):
        if message.type not in ("error", "warning"):
            return
        if message.text.startswith(REQUEST_FAILED):
            self.failed.append(message.text)
        else:
            self.faults.append(f"console: {message.text}")

    def _on_request(self, request):
        url = urllib.parse.urlsplit(request.url)
        if url.scheme != "data" and f"{url.scheme}://{url.netloc}" != self.origin:
            self.faults.append(f"left the origin: {request.url}")

    @property
    def token(self):
        return (self.broker.data / "api.token").read_text().splitlines()[0]

    def open(self, path="overview"):
        self.page.goto(f"{self.origin}/#/{path}")

    def log_in(self, name=None, password="secret"):
        page = self.page
        if name is None:
            page.get_by_label("Token", exact=False).fill(self.token)
        else:
            page.get_by_role("button", name="User").click()
            page.get_by_label("Username").fill(name)
            page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()

    def heading(self, name):
        self.page.get_by_role("heading", name=name, level=1).wait_for()

    def check(self, may_fail=False):
        """Nothing broke a rule; requests failed only where the test wanted it."""
        assert self.faults == [], self.faults
        assert may_fail or self.failed == [], self.failed


@pytest.fixture
def tab(chromium, start):
    """Opens tabs: `tab(broker)`. Each is checked at the end of the test."""
    opened = []

    def make(broker, may_fail=False, scheme="http", **options):
        options = {"viewport": {"width": 1400, "height": 900}, **options}
        dashboard = Dashboard(chromium.new_context(**options), broker, scheme)
        opened.append((dashboard, may_fail))
        return dashboard

    yield make
    for dashboard, may_fail in opened:
        dashboard.context.close()
        dashboard.check(may_fail)
