"""Lists that sort, count, export and act on a selection; alarms; the page of one client."""

import csv
import io
import json

from playwright.sync_api import expect

from conftest import CONFIG
from fill import publish, subscribe
from test_pages import BRIDGE, Client

COUNT = 120


def device(number):
    return f"device-{number:03}"


def first_cells(page, label, column):
    rows = page.get_by_role("region", name=label).locator("tbody tr")
    return rows.first.locator("td").nth(column)


def test_a_list_sorts_all_rows_and_counts_them(empty, tab):
    clients = [Client(empty, device(number)) for number in range(COUNT)]
    clients[77].send(subscribe(["a/#", "b/#", "c/#"]))
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("vera")
    expect(page.get_by_text(f"{COUNT} rows", exact=True)).to_be_visible()
    expect(page.get_by_text("1 to 50")).to_be_visible()
    table = page.get_by_role("region", name="Clients")
    table.get_by_role("button", name="Client ID").click()
    # Over all pages, not over the one that is shown.
    links = table.get_by_role("link")
    expect(links.first).to_have_text(device(0))
    expect(links.last).to_have_text(device(49))
    page.get_by_role("button", name="Next").click()
    expect(links.first).to_have_text(device(50))
    table.get_by_role("button", name="Client ID").click()
    expect(links.first).to_have_text(device(COUNT - 1))
    expect(table.get_by_role("columnheader", name="Client ID")).to_have_attribute("aria-sort", "descending")
    table.get_by_role("button", name="Subscriptions").click()
    table.get_by_role("button", name="Subscriptions").click()
    expect(links.first).to_have_text(device(77))


def test_a_list_is_exported_as_csv_and_json(empty, tab):
    names = [device(number) for number in range(COUNT)]
    hostile = ['=1+1', 'quote"comma,', "line\u2028end", "-x"]
    clients = [Client(empty, name) for name in [*names, *hostile]]
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("vera")
    expect(page.get_by_text(f"{COUNT + 4} rows", exact=True)).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Export as JSON").click()
    rows = json.loads(started.value.path().read_text())
    assert sorted(row["client_id"] for row in rows) == sorted([*names, *hostile])
    with page.expect_download() as started:
        page.get_by_role("button", name="Export as CSV").click()
    text = started.value.path().read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    found = {row["client_id"] for row in rows}
    assert found == {*names, "'=1+1", 'quote"comma,', "line\u2028end", "'-x"}
    assert {row["connected"] for row in rows} == {"true"}
    # The filters of the list are those of the file.
    page.get_by_label("Client ID contains").fill("device-00")
    expect(page.get_by_text("10 rows", exact=True)).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("button", name="Export as JSON").click()
    assert len(json.loads(started.value.path().read_text())) == 10
    assert len(clients) == COUNT + 4


def test_an_operator_acts_on_the_rows_that_are_selected(empty, tab):
    clients = {device(number): Client(empty, device(number)) for number in range(6)}
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("otto")
    for number in (1, 3):
        row = page.get_by_role("row").filter(has_text=device(number))
        row.get_by_role("checkbox").check()
    selected = page.get_by_role("group", name="Selected rows")
    expect(selected).to_contain_text("2 selected")
    expect(selected.get_by_role("button", name="Delete sessions")).to_have_count(0)
    selected.get_by_role("button", name="Disconnect").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Disconnect 2 clients?")
    dialog.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_role("status")).to_contain_text("Disconnected: 2 of 2.")
    assert clients[device(1)].is_closed() and clients[device(3)].is_closed()
    expect(selected).to_have_count(0)
    # The others stay.
    page.get_by_label("State").select_option("connected")
    expect(page.get_by_text("4 rows", exact=True)).to_be_visible()
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    expect(selected).to_contain_text("4 selected")


def test_a_viewer_selects_nothing(empty, tab):
    client = Client(empty, "one")
    dashboard = tab(empty)
    dashboard.open("clients")
    dashboard.log_in("vera")
    expect(dashboard.page.get_by_role("link", name="one", exact=True)).to_be_visible()
    expect(dashboard.page.get_by_role("checkbox")).to_have_count(0)
    client.socket.close()


def test_alarms_have_a_badge_and_a_page(users, start, tab):
    broker = start(CONFIG + BRIDGE, {"users": users})
    dashboard = tab(broker)
    page = dashboard.page
    dashboard.open("overview")
    dashboard.log_in("vera")
    badge = page.get_by_role("link", name="Alarms")
    expect(badge).to_contain_text("1")
    badge.click()
    dashboard.heading("Alarms")
    row = page.get_by_role("region", name="Alarms").locator("tbody tr")
    expect(row).to_contain_text("cloud")
    expect(row).to_contain_text("warning")
    row.get_by_role("link", name="bridge away").click()
    dashboard.heading("Bridges")


def test_no_alarm_has_no_badge(empty, tab):
    dashboard = tab(empty)
    dashboard.open("alarms")
    dashboard.log_in("vera")
    expect(dashboard.page.get_by_text("There is no alarm.")).to_be_visible()
    expect(dashboard.page.get_by_role("link", name="Alarms", exact=True)).to_have_text("Alarms")


def test_the_page_of_a_client_has_its_traffic_and_events(empty, tab):
    client = Client(empty, "busy").send(publish("a", b"x" * 3000) * 4)
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients/default/busy")
    dashboard.log_in("vera")
    facts = page.locator("dl.facts > div")
    expect(facts.filter(has_text="Listener")).to_contain_text("devices")
    expect(facts.filter(has_text="TLS")).to_contain_text("none")
    expect(facts.filter(has_text="Provider")).to_contain_text("anonymous")
    expect(facts.filter(has=page.get_by_text("In", exact=True))).to_contain_text("4")
    expect(facts.filter(has=page.get_by_text("In", exact=True))).to_contain_text("11.7 KiB")
    events = page.get_by_role("region", name="Last events")
    expect(events).to_contain_text("session.connected")
    client.socket.close()
    expect(events).to_contain_text("session.disconnected")


def test_retained_messages_are_cleared_by_filter(empty, tab):
    client = Client(empty, "source")
    topics = [f"ha/{number}/config" for number in range(COUNT)] + ["ha/state", "other/config"]
    client.send(b"".join(publish(topic, b"x", retain=True) for topic in topics))
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("topics")
    dashboard.log_in("otto")
    clear = page.get_by_role("button", name="Clear all that match")
    expect(page.get_by_text("more than 50 rows", exact=True)).to_be_visible()
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text(f"{len(topics)} rows", exact=True)).to_be_visible()
    # Without a filter nothing is offered.
    expect(clear).to_have_count(0)
    page.get_by_label("Topic filter").fill("ha/+/config")
    clear.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Clear {COUNT} retained messages?")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text(f"{COUNT} rows", exact=True)).to_be_visible()
    clear.click()
    dialog.get_by_role("button", name="Clear all").click()
    expect(page.get_by_role("status")).to_contain_text(f"{COUNT} retained messages cleared.")
    page.get_by_label("Topic filter").fill("")
    expect(page.get_by_text("2 rows", exact=True)).to_be_visible()


def test_the_navigation_has_groups(empty, tab):
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("overview")
    dashboard.log_in()
    for group, name in (("Clients", "Subscriptions"), ("Access", "Bans"), ("Operation", "Log")):
        links = page.get_by_role("group", name=group, exact=True)
        expect(links.get_by_role("link", name=name, exact=True)).to_be_visible()
