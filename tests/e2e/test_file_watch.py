"""Certificates, passwords, rules and bans are reloaded by themselves when their files change."""

import os
import shutil
import socket
import ssl
import subprocess

import pytest

from broker import PATIENCE_SECS, QUELEA, eventually
from test_access import may_publish
from test_cluster_directory import Standby
from test_cluster_process import configured, early, make_cluster, nats  # noqa: F401
from wire import Peer

CONFIG = """
[server]
watch_files_secs = 1
[[listeners]]
name = "plain"
url = "tcp://127.0.0.1:0"
[[listeners]]
name = "secure"
url = "tls://127.0.0.1:0"
tls.certificate = "{dir}/tls/tls.crt"
tls.key = "{dir}/tls/tls.key"
[auth]
password_file = "{dir}/passwords"
ban_file = "{dir}/bans"
[access]
acl_file = "{dir}/acl"
"""


@pytest.fixture
def watched(start, certs, passwords, tmp_path):
    """Makes a broker with its certificate where the kubelet puts a secret."""

    def make(config=CONFIG):
        broker = start(config.replace("{dir}", str(tmp_path)), files={}) if ready() else None
        broker.files = tmp_path
        return broker

    def ready():
        (tmp_path / "passwords").write_text(passwords)
        (tmp_path / "bans").write_text("")
        (tmp_path / "acl").write_text("user anna\ntopic readwrite garden/#\n")
        (tmp_path / "tls").mkdir()
        for name in ("server", "renewed"):
            of_time = tmp_path / "tls" / f"..{name}"
            of_time.mkdir()
            shutil.copy(certs / f"{name}.crt", of_time / "tls.crt")
            shutil.copy(certs / f"{name}.key", of_time / "tls.key")
        (tmp_path / "tls/..data").symlink_to("..server")
        for name in ("tls.crt", "tls.key"):
            (tmp_path / "tls" / name).symlink_to(f"..data/{name}")
        return True

    return make


def swap(broker, to):
    """What the kubelet does: a link is replaced, and no file is written."""
    fresh = broker.files / "tls/..data_tmp"
    fresh.symlink_to(to)
    os.replace(fresh, broker.files / "tls/..data")


def is_renewed(broker, certs):
    return is_renewed_at(broker.port("tls"), certs)


def is_renewed_at(port, certs):
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECS) as stream:
        with context.wrap_socket(stream, server_hostname="localhost") as secure:
            return (("organizationName", "renewed"),) in secure.getpeercert()["subject"]


def login(broker, user, password, **options):
    with Peer(broker.port()) as peer:
        return peer.connect(user=user, password=password, **options)[1]


def lines(broker, text):
    return [event for event in broker.log if text in event["message"]]


def test_a_secret_that_the_kubelet_swaps_is_reloaded(watched, certs):
    broker = watched()
    assert not is_renewed(broker, certs)
    swap(broker, "..renewed")
    eventually(lambda: is_renewed(broker, certs), "the renewed certificate")
    broker.wait_for_log(lambda event: "certificates reloaded" in event["message"])
    assert not lines(broker, "passwords and keys reloaded"), "only what has changed"


def test_a_certificate_and_its_key_may_come_one_after_the_other(watched, certs):
    broker = watched()
    tls = broker.files / "tls"
    (tls / "tls.crt").unlink()
    shutil.copy(certs / "renewed.crt", tls / "tls.crt")
    told = broker.wait_for_log(lambda event: "certificates have changed" in event["message"])
    assert told["level"] == "WARN" and told["listener"] == "secure"
    assert not is_renewed(broker, certs), "the old pair stays in force"
    fresh = tls / "new.key"
    shutil.copy(certs / "renewed.key", fresh)
    os.replace(fresh, tls / "tls.key")
    eventually(lambda: is_renewed(broker, certs), "the renewed certificate")
    assert len(lines(broker, "cannot be used")) == 1, "one warning"


def test_users_rules_and_bans_are_reloaded_without_a_signal(watched):
    broker = watched()
    assert login(broker, "clara", "neu") == 0x87
    fresh = broker.files / "fresh"
    shutil.copy(broker.files / "passwords", fresh)
    subprocess.run([QUELEA, "passwd", "-b", str(fresh), "clara", "neu"], check=True)
    os.replace(fresh, broker.files / "passwords")
    eventually(lambda: login(broker, "clara", "neu") == 0, "the new user")
    with Peer(broker.port()) as peer:
        peer.accepted(user="anna", password="secret", client_id="anna")
        assert not may_publish(peer, "house/lamp")
        # In place.
        (broker.files / "acl").write_text("user anna\ntopic readwrite #\n")
        eventually(lambda: may_publish(peer, "house/lamp"), "the new rules")
        (broker.files / "bans").write_text("client anna\n")
        peer.expect_disconnect(0x98)
    assert login(broker, "anna", "secret", client_id="anna") == 0x8A


@pytest.mark.parametrize("how", ["broken", "deleted"])
def test_what_cannot_be_used_is_told_once_and_the_old_stays(watched, how):
    broker = watched()
    acl = broker.files / "acl"
    acl.unlink() if how == "deleted" else acl.write_text("user anna\ntopic readwrite a/#/b\n")
    told = broker.wait_for_log(lambda event: "have changed and cannot" in event["message"])
    assert "access rules" in told["message"] and str(acl) in told["error"]
    with Peer(broker.port()) as peer:
        peer.accepted(user="anna", password="secret")
        assert may_publish(peer, "garden/lamp") and not may_publish(peer, "house/lamp")
        acl.write_text("user anna\ntopic readwrite #\n")
        eventually(lambda: may_publish(peer, "house/lamp"), "the new rules")
    assert len(lines(broker, "cannot be used")) == 1


def test_it_can_be_turned_off(watched):
    broker = watched(CONFIG.replace("watch_files_secs = 1", 'watch_files_secs = "off"'))
    (broker.files / "bans").write_text("client otto\n")
    os.utime(broker.files / "bans")
    broker.reload("bans reloaded")
    assert len(lines(broker, "bans reloaded")) == 1
    assert login(broker, "anna", "secret", client_id="otto") == 0x8A


def test_a_standby_reloads_its_certificate(nats, tmp_path, early, certs):  # noqa: F811
    make_cluster(nats, tmp_path)
    active = early(configured(nats, "n1"))
    eventually(lambda: (active.try_get("/readyz") or (0,))[0] == 200, "an active node")
    for end in ("crt", "key"):
        shutil.copy(certs / f"server.{end}", tmp_path / f"own.{end}")
    own = f"""
[[listeners]]
name = "secure"
url = "tls://127.0.0.1:0"
tls.certificate = "{tmp_path}/own.crt"
tls.key = "{tmp_path}/own.key"
"""
    config = configured(nats, "n2").replace("workers = 1", "workers = 1\nwatch_files_secs = 1")
    assert "watch_files_secs" in config
    standby = early(config + own, Standby)
    standby.wait_for_log(lambda event: "caught up" in event["message"])
    urls = [event["url"] for event in standby.log if event["message"] == "listening as a standby"]
    port = int(next(url for url in urls if "tls" in url).rsplit(":", 1)[1])
    assert not is_renewed_at(port, certs)
    for end in ("crt", "key"):
        shutil.copy(certs / f"renewed.{end}", tmp_path / f"own.{end}")
    eventually(lambda: is_renewed_at(port, certs), "the renewed certificate")


def test_registries_and_keys_of_tokens_are_reloaded(start, certs, tmp_path):
    registry, keys = tmp_path / "clients.json", tmp_path / "secret"
    registry.write_text("[]")
    keys.write_text("x" * 40)
    broker = start(f"""
[server]
watch_files_secs = 1
[[listeners]]
url = "tls://127.0.0.1:0"
tls.certificate = "{certs}/server.crt"
tls.key = "{certs}/server.key"
tls.client_ca = "{certs}/ca.crt"
tls.client_auth = "optional"
[[authentication]]
name = "fleet"
kind = "registry"
registry_file = "{registry}"
name_sources = ["subject"]
[[authentication]]
name = "tokens"
kind = "jwt"
secret_file = "{keys}"
""")
    registry.write_text("[")
    keys.write_text("short")
    for what in ("registries", "passwords and keys"):
        told = broker.wait_for_log(lambda event: f"{what} have changed" in event["message"])
        assert told["level"] == "WARN"
    registry.write_text("[]")
    broker.wait_for_log(lambda event: event["message"] == "registries reloaded")
    keys.write_text("y" * 40)
    broker.wait_for_log(lambda event: event["message"] == "passwords and keys reloaded")
    assert len(lines(broker, "cannot be used")) == 2
