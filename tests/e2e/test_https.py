"""HTTP and the API over TLS, with client certificates."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from broker import PATIENCE_SECS, QUELEA, Broker, eventually

CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[http.tls]
certificate = "{certs}/server.crt"
key = "{certs}/server.key"
client_ca = "{certs}/ca.crt"
client_auth = "optional"
crl = "{certs}/ca.crl"
[api]
listen = "http"
certificate_operators = ["anna", "eve"]
certificate_viewers = ["bruno"]
"""


def config(certs, text=CONFIG):
    return text.replace("{certs}", str(certs))


def trusting(certs, client=None):
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    if client:
        context.load_cert_chain(certs / f"{client}.crt", certs / f"{client}.key")
    return context


def ask(broker, certs, path="/api/v1/broker", client=None, headers=None, method="GET", body=None):
    """The status, or the exception of a connection that was not made."""
    url = f"https://localhost:{broker.port('https')}{path}"
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    context = trusting(certs, client)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECS, context=context) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError) as error:
        return error


def publish(broker, certs, client):
    body = json.dumps({"topic": "a", "payload": "x"}).encode()
    headers = {"Content-Type": "application/json"}
    return ask(broker, certs, "/api/v1/publish", client, headers, "POST", body)


def test_certificates_give_roles_and_pages_are_encrypted(start, certs):
    broker = start(config(certs))
    assert ask(broker, certs, "/readyz") == 200
    assert ask(broker, certs, "/metrics") == 200
    assert ask(broker, certs) == 401, "without a certificate, token or password"
    assert ask(broker, certs, client="client") == 200
    assert publish(broker, certs, "client") == 200
    assert ask(broker, certs, client="nameless") == 401, "a certificate alone gives no role"
    token = (broker.data / "api.token").read_text().splitlines()
    assert token[1] == f"https://127.0.0.1:{broker.port('https')}"
    assert ask(broker, certs, headers={"Authorization": f"Bearer {token[0]}"}) == 200
    other_site = {"Origin": "https://evil.example"}
    assert ask(broker, certs, client="client", headers=other_site) == 403
    audit = broker.wait_for_log(lambda event: "audit" in event["message"])
    assert "certificate:anna" in str(audit)


@pytest.mark.parametrize("client", ["revoked", "stranger", "expired"])
def test_certificates_that_do_not_count_end_the_handshake(start, certs, client):
    broker = start(config(certs))
    found = ask(broker, certs, client=client)
    assert isinstance(found, (ssl.SSLError, OSError, urllib.error.URLError)), found
    assert ask(broker, certs, client="client") == 200


def test_clear_text_is_answered_with_what_is_needed(start, certs):
    broker = start(config(certs))
    address = ("127.0.0.1", broker.port("https"))
    with socket.create_connection(address, PATIENCE_SECS) as stream:
        stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = stream.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer
    assert b"quelea_" not in answer


def test_silent_handshakes_keep_nobody_out(start, certs):
    broker = start(config(certs))
    address = ("127.0.0.1", broker.port("https"))
    silent = [socket.create_connection(address, PATIENCE_SECS) for _ in range(100)]
    for stream in silent[::2]:
        stream.sendall(b"\x16\x03\x01\x02\x00")
    try:
        assert ask(broker, certs, "/healthz") == 200
        # The oldest made room.
        silent[0].settimeout(PATIENCE_SECS)
        try:
            assert silent[0].recv(1) == b""
        except ConnectionResetError:
            pass
    finally:
        for stream in silent:
            stream.close()


def test_files_are_reloaded_and_broken_ones_are_not(start, certs, tmp_path):
    for file in certs.iterdir():
        shutil.copy(file, tmp_path / file.name)
    broker = start(config(tmp_path))

    def served():
        address = ("127.0.0.1", broker.port("https"))
        return ssl.get_server_certificate(address, timeout=PATIENCE_SECS)

    first = served()
    (tmp_path / "server.key").write_text("broken")
    seen = len(broker.log)
    broker.reload()
    failed = broker.wait_for_log(
        lambda event: "certificates not reloaded" in event["message"], seen
    )
    assert failed["listener"] == "http.listen"
    assert served() == first and ask(broker, tmp_path, client="client") == 200
    for kind in ("crt", "key"):
        shutil.copy(certs / f"renewed.{kind}", tmp_path / f"server.{kind}")
    broker.reload()
    eventually(lambda: served() != first, "the renewed certificate")


def ctl(*arguments, environment=None):
    env = {name: value for name, value in os.environ.items() if "QUELEA" not in name}
    return subprocess.run(
        [QUELEA, "ctl", *map(str, arguments)], capture_output=True, text=True,
        timeout=PATIENCE_SECS, env={**env, **(environment or {})},
    )


def test_ctl_uses_https_with_token_certificate_or_password(start, certs, passwords, tmp_path):
    users = '[api]\npassword_file = "{dir}/users"\n'
    text = config(certs).replace("[api]\n", users)
    broker = start(text, {"users": passwords})
    local = ctl("--data", broker.data, "info")
    assert local.returncode == 0, local.stderr
    url = ["--url", f"https://localhost:{broker.port('https')}"]
    ca = ["--ca", certs / "ca.crt"]
    own = ["--cert", certs / "client.crt", "--key", certs / "client.key"]
    assert ctl(*url, *ca, *own, "info").returncode == 0
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    assert ctl(*url, *ca, "--user", "anna", "--user-password-file", secret, "info").returncode == 0
    by_environment = ctl(
        *url, *ca, "--user", "bruno", "info", environment={"QUELEA_PASSWORD": "geheim"}
    )
    assert by_environment.returncode == 0, by_environment.stderr
    untrusted = ctl(*url, *own, "info")
    assert untrusted.returncode == 1 and "ertificate" in untrusted.stderr
    wrong_ca = ctl(*url, "--ca", certs / "other_ca.crt", *own, "info")
    assert wrong_ca.returncode == 1
    nameless = ["--cert", certs / "nameless.crt", "--key", certs / "nameless.key"]
    assert ctl(*url, *ca, *nameless, "info").returncode == 4


def check(tmp_path, text):
    path = tmp_path / "quelea.toml"
    path.write_text(text)
    command = [QUELEA, "serve", "--check-config", "-c", path, "-d", tmp_path / "data"]
    return subprocess.run(
        [*command, "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=PATIENCE_SECS,
    )


def test_remote_addresses_need_tls_and_roles_need_certificates(certs, tmp_path):
    tls = f'certificate = "{certs}/server.crt"\nkey = "{certs}/server.key"\n'
    remote = '[api]\nlisten = "0.0.0.0:0"\n'
    refused = check(tmp_path, remote)
    assert refused.returncode == 2 and "[api.tls]" in refused.stderr
    assert check(tmp_path, remote + "[api.tls]\n" + tls).returncode == 0
    assert check(tmp_path, remote + "allow_remote = true\n").returncode == 0
    unproved = check(tmp_path, remote + 'certificate_admins = ["anna"]\n[api.tls]\n' + tls)
    assert unproved.returncode == 2 and "client_auth" in unproved.stderr
    half = check(tmp_path, f'[http.tls]\ncertificate = "{certs}/server.crt"\n')
    assert half.returncode == 2 and "http.tls" in half.stderr
    shared = check(tmp_path, '[api]\nlisten = "http"\n[api.tls]\n' + tls)
    assert shared.returncode == 2 and "[http.tls]" in shared.stderr
    mixed = f'[http.tls]\ncertificate = "{certs}/server.crt"\nkey = "{certs}/client.key"\n'
    wrong = check(tmp_path, mixed)
    assert wrong.returncode == 2 and "do not belong together" in wrong.stderr


def test_health_asks_over_tls(certs, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    broker = Broker(config(certs) + f'[http]\nlisten = "127.0.0.1:{port}"\n')
    try:
        command = [QUELEA, "health", "--ready", "--config", broker.config]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)
        assert done.returncode == 0 and done.stdout == "ready\n", done.stderr
    finally:
        broker.stop()
