"""The dashboard with names, payloads and addresses that break pages, and with a broker that hangs."""

import json
import os
import signal
import subprocess

import pytest
from playwright.sync_api import expect

from broker import QUELEA
from conftest import CONFIG
from fill import publish
from test_pages import Client, ask, session_of

NAMES = ["..", ".", "%", "%2e%2e", "a/../b", "a?b#c", "x y+z", "<b>b</b>"]
SEPARATORS = ["line\u2028end", "paragraph\u2029end"]


def connected(dashboard):
    """The names of connected clients, as the API has them."""
    path = "/clients?connected=true&limit=1000"
    status, page = ask(dashboard, "GET", path, f"Bearer {dashboard.token}")
    assert status == 200
    return {row["client_id"] for row in page["items"]}


def test_the_page_of_a_client_acts_on_that_client(empty, tab):
    clients = {name: Client(empty, name) for name in [*NAMES, *SEPARATORS, "other"]}
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("otto")
    for name in [*NAMES, *SEPARATORS]:
        page.get_by_role("link", name=name, exact=True).click()
        dashboard.heading(name)
        page.reload()
        dashboard.heading(name)
        page.get_by_role("button", name="Disconnect").click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        assert clients.pop(name).is_closed()
        expect(page.get_by_text("offline", exact=True)).to_be_visible()
        assert connected(dashboard) == set(clients)
        page.get_by_role("link", name="All clients").click()
        dashboard.heading("Clients")


def test_a_name_with_a_line_separator_is_in_events_and_traces(empty, tab):
    name = SEPARATORS[0]
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("events")
    with page.expect_response(lambda answer: "/api/v1/events" in answer.url and answer.ok):
        dashboard.log_in("otto")
    Client(empty, name)
    expect(page.get_by_role("link", name=name).first).to_be_visible()
    with page.expect_response(lambda answer: "/api/v1/trace" in answer.url and answer.ok):
        dashboard.open("trace?client_id=line%E2%80%A8end")
    Client(empty, name).send(publish("a\u2028b", b"1"))
    rows = page.get_by_role("region", name="Packets").locator("tbody tr")
    expect(rows.filter(has_text="PUBLISH")).to_contain_text("a\u2028b")


def test_an_address_with_broken_escapes_shows_a_page(empty, tab):
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("%")
    dashboard.log_in("vera")
    dashboard.heading("Overview")
    for path in ("%", "%E0%A4%A", "%zz/%", "clients?client_id=%", "nowhere/at/all"):
        dashboard.open(path)
        expect(page.get_by_role("link", name="Listeners")).to_be_visible()
        page.reload()
        expect(page.get_by_role("link", name="Listeners")).to_be_visible()
    Client(empty, "100%")
    dashboard.open("clients/default/100%")
    dashboard.heading("100%")


@pytest.fixture
def large(users, start):
    """A broker that takes packets of 20 MiB."""
    config = CONFIG.replace("[limits]", "[limits]\npacket_bytes_max = 20971520")
    return start(config, {"users": users})


def test_a_large_payload_is_cut_and_downloaded(large, tab):
    rows = [{"number": number, "text": "x" * 200} for number in range(65_000)]
    payload = json.dumps(rows).encode()
    assert len(payload) > 14_000_000
    deep = b"[" * 30_000 + b"]" * 30_000
    client = Client(large, "source").send(publish("large", payload, retain=True))
    client.send(publish("deep", deep, retain=True) + publish("ü", "ü".encode() * 40_000, retain=True))
    client.send(b"\xc0\x00")
    answers = b""
    while not answers.endswith(b"\xd0\x00"):
        answers += client.socket.recv(4096)
    dashboard = tab(large)
    page = dashboard.page
    dashboard.open("topics?topic=large")
    dashboard.log_in("vera")
    shown = page.get_by_label("Payload")
    expect(shown).to_contain_text('[{"number": 0, "text": "xxx')
    assert len(shown.inner_text()) <= 65_536
    expect(page.get_by_text("The first 64.0 KiB of 14")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    assert started.value.path().read_bytes() == payload
    dashboard.open("topics?topic=deep")
    expect(shown).to_contain_text("[[[[")
    # A cut within a character is no sign of binary data.
    dashboard.open("topics?topic=%C3%BC")
    expect(shown).to_contain_text("üüü")


def test_a_link_is_taken_out_of_an_open_page(empty, tab):
    def link():
        command = [QUELEA, "ctl", "--data", str(empty.data), "dashboard"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("clients")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    # A page that shows the form.
    page.goto(link())
    dashboard.heading("Overview")
    assert session_of(dashboard)["name"] == "token" and "login" not in page.url
    page.get_by_role("button", name="Log out").click()
    dashboard.log_in("vera")
    dashboard.heading("Overview")
    # A page with a session.
    dashboard.open("listeners")
    page.goto(link())
    expect(page.get_by_title("name and role of this session")).to_contain_text("token")
    assert "login" not in page.url
    page.go_back()
    dashboard.heading("Listeners")
    assert "login" not in page.url
    page.go_forward()
    dashboard.heading("Overview")
    assert "login" not in page.url
    # One that is not valid is taken out as well.
    page.goto(f"{dashboard.origin}/#login=nothing")
    expect(page.get_by_role("status")).to_contain_text("the link was used")
    assert "login" not in page.url
    assert session_of(dashboard)["name"] == "token"


def test_a_broker_that_hangs_is_marked(empty, tab):
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("vera")
    dashboard.heading("Clients")
    mark = page.get_by_text("The broker has not answered for some seconds.")
    expect(mark).to_have_count(0)
    os.kill(empty.process.pid, signal.SIGSTOP)
    try:
        # Two polls of two seconds; a request would be given up after 15.
        expect(mark).to_be_visible(timeout=10_000)
    finally:
        os.kill(empty.process.pid, signal.SIGCONT)
    expect(mark).to_have_count(0)
