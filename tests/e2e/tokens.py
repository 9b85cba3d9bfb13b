"""Tokens, key sets and services that say who a client is: made by the tests themselves."""

import base64
import hashlib
import hmac
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "thirty-two bytes or more of a secret"


def b64(data):
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**more):
    return {"sub": "anna", "exp": int(time.time()) + 600, **more}


def hs256(payload, secret=SECRET, **header):
    text = f"{b64({'alg': 'HS256', **header})}.{b64(payload)}"
    key = secret if isinstance(secret, bytes) else secret.encode()
    return f"{text}.{b64(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


class RsaKey:
    """A key of the openssl command."""

    def __init__(self, directory, kid):
        self.kid = kid
        self.path = directory / f"{kid}.key"
        self._openssl("genrsa", "-out", self.path, "2048")
        self.public = self._openssl("rsa", "-in", self.path, "-pubout").decode()

    def sign(self, payload, **header):
        text = f"{b64({'alg': 'RS256', 'kid': self.kid, **header})}.{b64(payload)}"
        signature = self._openssl("dgst", "-sha256", "-sign", self.path, stdin=text.encode())
        return f"{text}.{b64(signature)}"

    def jwk(self):
        told = self._openssl("rsa", "-in", self.path, "-modulus", "-noout").decode()
        modulus = bytes.fromhex(told.strip().split("=")[1])
        return {"kty": "RSA", "use": "sig", "kid": self.kid, "n": b64(modulus), "e": "AQAB"}

    @staticmethod
    def _openssl(*arguments, stdin=None):
        command = ["openssl", *map(str, arguments)]
        return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Or many that come at once wait for seconds to be connected.
    request_queue_size = 256


class Service:
    """An HTTP service: `answer(path, body)` gives status, headers and body, and may take long."""

    def __init__(self, answer):
        self.asked = []
        self.answer = answer
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _reply(self, body):
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.asked.append((self.command, self.path, body, headers))
                try:
                    status, headers, text = service.answer(self.path, body)
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if status != 204:
                        self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def do_GET(self):
                self._reply(b"")

            def do_POST(self):
                self._reply(self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def as_json(value, status=200, **headers):
    return status, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()
