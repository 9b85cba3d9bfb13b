"""The dashboard in a real browser."""

import json
import re
import signal
import socket
import subprocess
import tarfile
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect

from broker import QUELEA
from conftest import CONFIG, SESSIONS
from fill import connect, publish, subscribe

# Path and heading of each page that needs no client of its own.
PAGES = [
    ("overview", "Overview"),
    ("clients", "Clients"),
    ("topics", "Topics"),
    ("subscriptions", "Subscriptions"),
    ("groups", "Shared groups"),
    ("messages", "Publish & subscribe"),
    ("events", "Events"),
    ("namespaces", "Namespaces"),
    ("routing", "Routing"),
    ("permissions", "Permissions"),
    ("rules", "Access rules"),
    ("bans", "Bans"),
    ("trace", "Trace"),
    ("listeners", "Listeners"),
    ("bridges", "Bridges"),
    ("limits", "Limits"),
    ("memory", "Memory and drops"),
    ("audit", "Audit"),
    ("log", "Log"),
    ("logs", "Durable log"),
    ("backup", "Backup"),
    ("settings", "Settings"),
]


class Client:
    """An MQTT client that stays connected; it sends and does not look at answers but the first."""

    def __init__(self, broker, client_id, **options):
        self.socket = socket.create_connection(("127.0.0.1", broker.port()))
        self.socket.sendall(connect(client_id, **options))
        assert self.socket.recv(4)[:1] == b"\x20"

    def send(self, data):
        self.socket.sendall(data)
        return self

    def is_closed(self):
        """Waits for the end."""
        self.socket.settimeout(15)
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True


def ask(dashboard, method, path, authorization, body=None):
    """Status and JSON of a call of the API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{dashboard.origin}/api/v1{path}", data, method=method)
    request.add_header("Authorization", authorization)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return answer.status, json.loads(answer.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def session_of(dashboard):
    return json.loads(dashboard.page.evaluate("sessionStorage.getItem('quelea.session')"))


def test_log_in_log_out(empty, tab):
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("vera", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("wrong username or password")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in").click()
    dashboard.heading("Clients")
    kept = page.evaluate("JSON.stringify({ ...sessionStorage, ...localStorage }) + document.cookie")
    assert "secret" not in kept and "vera" in kept
    bearer = f"Bearer {session_of(dashboard)['token']}"
    assert ask(dashboard, "GET", "/caller", bearer)[0] == 200
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert ask(dashboard, "GET", "/caller", bearer)[0] == 401
    assert page.evaluate("sessionStorage.length") == 0


def test_a_link_logs_in_once(empty, tab):
    command = [QUELEA, "ctl", "--data", str(empty.data), "dashboard"]
    link = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    dashboard = tab(empty)
    dashboard.page.goto(link)
    dashboard.heading("Overview")
    assert "login" not in dashboard.page.url
    assert session_of(dashboard)["role"] == "admin"
    late = tab(empty, may_fail=True)
    late.page.goto(link)
    expect(late.page.get_by_role("alert")).to_contain_text("link that was used")


def test_a_removed_user_has_no_session(empty, tab, users):
    dashboard = tab(empty, may_fail=True)
    dashboard.open()
    dashboard.log_in("vera")
    dashboard.heading("Overview")
    lines = [line for line in users.splitlines() if not line.startswith("vera:")]
    (empty.directory / "users").write_text("\n".join(lines) + "\n")
    empty.reload()
    expect(dashboard.page.get_by_text("The session has ended")).to_be_visible()


HTTPS = """
[http.tls]
certificate = "{certs}/server.crt"
key = "{certs}/server.key"
client_ca = "{certs}/ca.crt"
client_auth = "optional"
[api]
certificate_operators = ["anna"]
"""


@pytest.fixture
def encrypted(users, start, certs):
    """A broker that serves HTTPS; the certificate `client` is an operator's."""
    text = CONFIG.replace("[api]\n", HTTPS.replace("{certs}", str(certs)))
    return start(text, {"users": users})


def shown(broker, certs, name):
    """Options of a browser that shows this client certificate."""
    origin = f"https://127.0.0.1:{broker.port('https')}"
    paths = {"certPath": certs / f"{name}.crt", "keyPath": certs / f"{name}.key"}
    certificate = {"origin": origin, **paths}
    return {"scheme": "https", "ignore_https_errors": True, "client_certificates": [certificate]}


def test_a_client_certificate_logs_in_without_a_form(encrypted, certs, tab):
    dashboard = tab(encrypted, may_fail=True, **shown(encrypted, certs, "client"))
    page = dashboard.page
    dashboard.open("messages")
    dashboard.heading("Publish & subscribe")
    expect(page.get_by_text("certificate:anna")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('quelea.session')") is None, "there is no secret"
    # It has the rights of an operator, and streams work.
    page.get_by_label("Topic", exact=True).fill("a")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published: no matching subscribers.")).to_be_visible()
    with page.expect_response(lambda answer: "/events" in answer.url and answer.status == 200):
        dashboard.open("events")
    Client(encrypted, "seen").socket.close()
    expect(page.get_by_role("link", name="seen").first).to_be_visible()
    expect(page.get_by_role("link", name="Users")).to_have_count(0)
    # Who logs out stays out, until it asks for the certificate.
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    dashboard.log_in("vera")
    dashboard.heading("Events")
    expect(page.get_by_text("certificate:anna")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Use the client certificate").click()
    expect(page.get_by_text("certificate:anna")).to_be_visible()


@pytest.mark.parametrize("name", [None, "nameless"])
def test_a_browser_without_a_certificate_that_counts_gets_the_form(encrypted, certs, tab, name):
    options = shown(encrypted, certs, name or "client")
    if name is None:
        del options["client_certificates"]
    dashboard = tab(encrypted, may_fail=True, **options)
    page = dashboard.page
    dashboard.open()
    page.get_by_role("button", name="Use the client certificate").click()
    expect(page.get_by_text("no client certificate that gives a role")).to_be_visible()
    dashboard.log_in("otto")
    dashboard.heading("Overview")


def test_settings_fit_a_narrow_page(empty, tab):
    dashboard = tab(empty, viewport={"width": 400, "height": 850})
    page = dashboard.page
    dashboard.open("settings")
    dashboard.log_in()
    page.get_by_label("Show").select_option("live")
    row = page.locator("tbody tr").filter(has_text="client_lines_per_second_max")
    row.get_by_role("button", name="Set").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("77")
    dialog.get_by_role("button", name="Set").click()
    button = row.get_by_role("button", name="Reset")
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 400, box
    region = "element => element.closest('.scroll').scrollWidth - element.closest('.scroll').clientWidth"
    assert button.evaluate(region) == 0, "nothing is cut off"


@pytest.mark.parametrize("width", [1400, 420])
def test_every_page_with_very_many_sessions(full, tab, width):
    dashboard = tab(full, viewport={"width": width, "height": 850}, color_scheme="dark")
    page = dashboard.page
    rows = []
    page.on("response", lambda answer: rows.append(answer) if "/clients?" in answer.url else None)
    dashboard.open()
    dashboard.log_in()
    expect(page.get_by_text(f"{SESSIONS:,} sessions")).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    for path, heading in PAGES:
        dashboard.open(path)
        dashboard.heading(heading)
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        expect(page.locator(".fault")).to_have_count(0)
    assert rows and all(len(answer.json()["items"]) <= 50 for answer in rows)


def test_filters_pages_and_one_client(full, tab):
    dashboard = tab(full)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in("vera")
    body = page.locator("tbody tr")
    expect(body).to_have_count(50)
    first = body.first.inner_text()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51 to 100")).to_be_visible()
    assert body.first.inner_text() != first
    page.get_by_role("button", name="Previous").click()
    expect(body.first).to_have_text(re.compile(first.split()[0]))
    page.keyboard.press("/")
    page.keyboard.type("device-099999")
    expect(body).to_have_count(1)
    assert "client_id=device-099999" in page.url
    page.get_by_role("link", name="device-099999").click()
    dashboard.heading("device-099999")
    expect(page.get_by_text("offline", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Subscriptions")).to_contain_text(f"site/{99_999 % 97}/#")
    page.go_back()
    expect(body).to_have_count(1)
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="Clients").click()
    page.keyboard.press("g")
    page.keyboard.press("t")
    dashboard.heading("Topics")


def test_a_viewer_is_offered_nothing_that_it_may_not(full, tab):
    dashboard = tab(full, may_fail=True)
    page = dashboard.page
    dashboard.open("clients/default/device-000001")
    dashboard.log_in("vera")
    dashboard.heading("device-000001")
    for name in ("Disconnect", "Ban", "Delete session"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="Settings")).to_have_count(0)
    bearer = f"Bearer {session_of(dashboard)['token']}"
    for method, path in [
        ("POST", "/client/disconnect?client_id=device-000001"),
        ("DELETE", "/client?client_id=device-000001"),
        ("GET", "/settings"),
        ("POST", "/sessions"),
        ("POST", "/sessions/link"),
    ]:
        assert ask(dashboard, method, path, bearer)[0] == 403, path


def test_an_operator_disconnects_bans_and_an_admin_deletes(empty, tab):
    client = Client(empty, "lamp/1").send(subscribe(["home/#"]))
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("clients/default/lamp%2F1")
    dashboard.log_in("otto")
    expect(page.get_by_text("connected", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Delete session")).to_have_count(0)
    page.get_by_role("button", name="Disconnect").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The session stays")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Disconnect").click()
    dialog.get_by_role("button", name="Disconnect").click()
    assert client.is_closed()
    expect(page.get_by_text("lamp/1 was disconnected.")).to_be_visible()
    page.get_by_role("button", name="Ban").click()
    dialog.get_by_role("button", name="Ban").click()
    expect(page.get_by_text("lamp/1 is banned.")).to_be_visible()
    page.get_by_role("link", name="Bans").click()
    page.get_by_role("button", name="Remove").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Nobody is banned.")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    dashboard.open("clients/default/lamp%2F1")
    dashboard.log_in()
    page.get_by_role("button", name="Delete session").click()
    expect(dialog).to_contain_text("1 subscriptions and 0 queued messages")
    dialog.get_by_role("button", name="Delete session").click()
    dashboard.heading("Clients")
    expect(page.get_by_text("No client has connected yet.")).to_be_visible()


def test_a_broker_that_goes_away_comes_back(empty, tab):
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("listeners")
    dashboard.log_in("otto")
    dashboard.heading("Listeners")
    away = page.get_by_text("The broker does not answer.")
    port = empty.port("http")
    empty.kill()
    expect(away).to_be_visible()
    # It has a port of its own each time unless it is told one.
    text = empty.config.read_text().replace('listen = "127.0.0.1:0"', f'listen = "127.0.0.1:{port}"')
    empty.config.write_text(text)
    empty._launch()
    expect(away).to_have_count(0)
    # Sessions are in memory: the page asks for the password, and goes on where it was.
    expect(page.get_by_text("The session has ended")).to_be_visible()
    dashboard.log_in("otto")
    dashboard.heading("Listeners")
    dashboard.faults.clear()


def test_a_broker_that_pauses_goes_on(empty, tab):
    dashboard = tab(empty, may_fail=True)
    dashboard.open()
    dashboard.log_in("otto")
    dashboard.heading("Overview")
    empty.process.send_signal(signal.SIGSTOP)
    try:
        dashboard.page.get_by_role("link", name="Clients").first.click()
        dashboard.heading("Clients")
    finally:
        empty.process.send_signal(signal.SIGCONT)
    expect(dashboard.page.get_by_text("No client has connected yet.")).to_be_visible()


def test_publish_and_subscribe(empty, tab):
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("messages")
    dashboard.log_in("otto")
    page.get_by_role("button", name="Subscribe").click()
    expect(page.get_by_text("Waiting for messages.")).to_be_visible()
    page.get_by_label("Topic", exact=True).fill("home/<b>lamp</b>")
    page.get_by_label("Payload").fill('{"on":true}')
    page.get_by_role("button", name="Publish").click()
    message = page.get_by_role("list", name="Messages").get_by_role("listitem")
    expect(message).to_contain_text("home/<b>lamp</b>")
    expect(message).to_contain_text('"on": true')
    page.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_role("button", name="Subscribe")).to_be_visible()


def test_names_of_clients_are_text(empty, tab):
    """A client chooses its ID and topics; a page must not take them for its own."""
    wrong = "<img src=x onerror=alert(1)>"
    Client(empty, wrong).send(publish(f"a/{wrong}", wrong.encode(), retain=True))
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients")
    dashboard.log_in()
    page.get_by_role("link", name=wrong).click()
    dashboard.heading(wrong)
    dashboard.open("topics")
    page.get_by_role("link", name=f"a/{wrong}").click()
    expect(page.locator("pre")).to_have_text(wrong)
    expect(page.locator("img")).to_have_count(0)


def test_retained_messages_and_receivers(empty, tab):
    Client(empty, "wall").send(subscribe(["home/+"]))
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("topics")
    dashboard.log_in("otto")
    page.get_by_role("button", name="Retain a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("home/mode")
    dialog.get_by_label("Payload").fill("away")
    dialog.get_by_role("button", name="Publish").click()
    page.get_by_role("link", name="home/mode").click()
    expect(page.locator("pre")).to_have_text("away")
    expect(page.get_by_role("region", name="Receivers")).to_contain_text("wall")
    page.get_by_role("button", name="Clear").click()
    dialog.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("There is no retained message on home/mode.")).to_be_visible()


def test_the_tree_of_topics_and_all_subscriptions(empty, tab):
    Client(empty, "wall").send(subscribe(["home/+/power", "$share/g/home/#"]))
    sender = Client(empty, "sender")
    for room in range(3):
        sender.send(publish(f"home/{room}/power", b"1", retain=True))
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("subscriptions?topic=home/1/power")
    dashboard.log_in("vera")
    expect(page.get_by_role("region", name="Subscriptions").locator("tbody tr")).to_have_count(2)
    page.get_by_label("Kind").select_option("true")
    expect(page.get_by_role("region", name="Subscriptions").locator("tbody tr")).to_have_count(1)
    dashboard.open("topics")
    page.get_by_role("button", name="home, 3 below").click()
    page.get_by_role("button", name="home/1, 1 below").click()
    page.get_by_role("link", name="power", exact=True).click()
    expect(page.locator("pre")).to_have_text("1")


def test_what_a_client_may_do(empty, tab):
    Client(empty, "lamp")
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("clients/default/lamp")
    dashboard.log_in("vera")
    page.get_by_label("Topic", exact=True).fill("home/lamp")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status").filter(has_text="Decision")).to_contain_text("there are no access rules")
    dashboard.open("permissions")
    page.get_by_label("Client ID").fill("new")
    page.get_by_label("Topic", exact=True).fill("$SYS/x")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status").filter(has_text="Decision")).to_contain_text("denied")


def test_a_trace_shows_packets_and_stops(empty, tab):
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("trace?client_id=lamp")
    # The trace begins with the answer: what comes before is not shown.
    with page.expect_response(lambda answer: "/api/v1/trace" in answer.url and answer.ok):
        dashboard.log_in("otto")
    expect(page.get_by_text("Waiting for a packet.")).to_be_visible()
    Client(empty, "lamp").send(publish("home/<i>lamp</i>", b"on"))
    rows = page.get_by_role("region", name="Packets").locator("tbody tr")
    expect(rows.filter(has_text="CONNECT").first).to_be_visible()
    expect(rows.filter(has_text="home/<i>lamp</i>")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_users_are_added_and_deleted(users, start, tab):
    broker = start(CONFIG + USERS, {"users": users, "clients": ""})
    dashboard = tab(broker)
    page = dashboard.page
    dashboard.open("users")
    dashboard.log_in()
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Username").fill("<b>anna</b>")
    dialog.get_by_label("Password").fill("a secret")
    dialog.get_by_role("button", name="Add").click()
    row = page.get_by_role("region", name="Users").locator("tbody tr")
    expect(row).to_contain_text("<b>anna</b>")
    assert "<b>anna</b>:$argon2id$" in (broker.directory / "clients").read_text()
    row.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("The password file has no user.")).to_be_visible()
    dashboard.open("audit")
    calls = page.get_by_role("region", name="Calls")
    expect(calls).to_contain_text("PUT /user?username=")
    expect(calls).to_contain_text("DELETE /user?username=")
    assert "a secret" not in page.content() + broker.log_text()


def test_a_setting_changes_and_is_reset(empty, tab):
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("settings")
    dashboard.log_in()
    page.get_by_label("Show").select_option("live")
    row = page.locator("tbody tr").filter(has_text="client_lines_per_second_max")
    row.get_by_role("button", name="Set").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("77")
    dialog.get_by_role("button", name="Set").click()
    expect(row).to_contain_text("77")
    expect(row).to_contain_text("set while running")
    row.get_by_role("button", name="Reset").click()
    dialog.get_by_role("button", name="Reset").click()
    expect(row).not_to_contain_text("set while running")


def test_a_backup_is_downloaded(users, start, tab, tmp_path):
    broker = start(CONFIG.replace('"memory"', '"disk"'), {"users": users})
    dashboard = tab(broker)
    # The dialog for files is none of the page, and cannot be answered here.
    dashboard.page.add_init_script("delete window.showSaveFilePicker")
    dashboard.open("backup")
    dashboard.log_in()
    with dashboard.page.expect_download() as started:
        dashboard.page.get_by_role("button", name="Download a backup").click()
    expect(dashboard.page.get_by_role("status").filter(has_text="Whole")).to_contain_text(".tar")
    with tarfile.open(started.value.path()) as archive:
        archive.extractall(tmp_path)
    checked = subprocess.run([QUELEA, "log", "check", tmp_path], capture_output=True, text=True)
    assert checked.returncode == 0 and "shard 0: ok" in checked.stdout, checked.stdout


def test_a_bridge_and_why_it_is_not_connected(users, start, tab):
    broker = start(CONFIG + BRIDGE, {"users": users})
    dashboard = tab(broker)
    dashboard.open("bridges")
    dashboard.log_in("vera")
    row = dashboard.page.get_by_role("region", name="Bridges").locator("tbody tr")
    expect(row).to_contain_text("cloud")
    expect(row).to_contain_text("refused")


USERS = """
[auth]
password_file = "{dir}/clients"
allow_anonymous = true
"""

# Nothing listens on port 1.
BRIDGE = """
[[bridges]]
name = "cloud"
addresses = ["tcp://127.0.0.1:1"]
[[bridges.topics]]
filter = "up/#"
direction = "out"
"""


ROUTING = """
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
"""

# Nothing listens on port 1.
RULES = """
[[streams]]
name = "cars"
filters = ["cars/#"]
[[targets]]
name = "hook"
type = "http"
url = "http://127.0.0.1:1/in"
[[rules]]
name = "all"
filter = "cars/#"
target = "hook"
"""


def test_a_rule_and_why_it_does_not_deliver(users, start, tab):
    broker = start(CONFIG + ROUTING, {"users": users, "rules.toml": RULES})
    client = Client(broker, "car-7")
    client.send(b"".join(publish(f"cars/{number}", b"x") for number in range(5)))
    dashboard = tab(broker)
    dashboard.open("routing")
    dashboard.log_in("otto")
    page = dashboard.page
    row = page.get_by_role("region", name="Rules").locator("tbody tr")
    expect(row).to_contain_text("probation")
    expect(row).to_contain_text("the target is not available")
    stream = page.get_by_role("region", name="Streams").locator("tbody tr")
    expect(stream).to_contain_text("cars/#")
    row.get_by_role("link", name="all").click()
    dashboard.heading("all")
    expect(page.locator("svg.sum-bar")).to_have_attribute("aria-label", re.compile(": 5$"))
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("also after a restart")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused by an operator")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Seek").click()
    page.get_by_label("To").fill("end")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(page.get_by_text("no message since the run began")).to_be_visible()


def test_routing_says_how_it_is_configured(empty, tab):
    dashboard = tab(empty)
    dashboard.open("routing")
    dashboard.log_in("vera")
    expect(dashboard.page.get_by_text("routing.file")).to_be_visible()


def test_access_rules_are_shown_as_they_were_read(users, start, tab):
    changed = "topic read other/#\n"
    config = CONFIG + '[access]\nacl_file = "{dir}/acl"\n'
    broker = start(config, {"users": users, "acl": "topic read news/#\n# <b>all</b>\n"})
    (broker.directory / "acl").write_text(changed)
    dashboard = tab(broker)
    dashboard.open("rules")
    dashboard.log_in()
    lines = dashboard.page.locator("ol.lines li")
    expect(lines).to_have_text(["topic read news/#", "# <b>all</b>"])
    broker.reload()
    dashboard.page.reload()
    expect(lines).to_have_text(["topic read other/#"])


def test_a_limit_that_is_nearly_used_up_is_marked(users, start, tab):
    config = CONFIG.replace("[limits]", "[limits]\nretained_messages_max = 4")
    config = config.replace('name = "devices"', 'name = "devices"\nconnections_max = 7')
    broker = start(config, {"users": users})
    client = Client(broker, "one")
    client.send(b"".join(publish(f"r/{number}", b"x", retain=True) for number in range(4)))
    dashboard = tab(broker)
    dashboard.open("limits")
    dashboard.log_in("vera")
    page = dashboard.page
    row = page.get_by_role("row").filter(has_text="retained_messages_max")
    expect(row).to_contain_text("100 %")
    expect(row.locator(".badge.bad")).to_be_visible()
    listeners = page.get_by_role("region", name="Listeners")
    expect(listeners.locator("tbody tr")).to_contain_text("devices")
    client.socket.close()


def test_clients_that_lost_messages_are_listed(empty, tab):
    dashboard = tab(empty, may_fail=True)
    page = dashboard.page
    dashboard.open("memory")
    dashboard.log_in("vera")
    expect(page.get_by_text("No client has lost a message.")).to_be_visible()
    # A maximum packet size of 64 bytes.
    reader = Client(empty, "<b>lossy</b>", more=b"\x27\x00\x00\x00\x40").send(subscribe(["big"], 0))
    assert reader.socket.recv(64), "it is subscribed"
    Client(empty, "publisher").send(publish("big", b"x" * 100))
    row = page.get_by_role("region", name="Clients that lost messages").locator("tbody tr")
    # The page looks every five seconds.
    expect(row).to_contain_text(["<b>lossy</b>"], timeout=15_000)
    expect(row).to_contain_text(["too large 1"])
    row.get_by_role("link").click()
    dashboard.heading("<b>lossy</b>")


def test_events_as_they_happen(empty, tab):
    dashboard = tab(empty)
    page = dashboard.page
    dashboard.open("events")
    with page.expect_response(lambda answer: "/events" in answer.url and answer.status == 200):
        dashboard.log_in("vera")
    dashboard.heading("Events")
    client = Client(empty, "bell")
    expect(page.get_by_role("link", name="bell").first).to_be_visible()
    client.socket.close()


def test_colours_follow_the_choice(empty, tab):
    dashboard = tab(empty, color_scheme="light")
    page = dashboard.page
    dashboard.open()
    dashboard.log_in()
    dashboard.heading("Overview")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate(back) != light
    page.reload()
    dashboard.heading("Overview")
    assert page.evaluate(back) != light
