"""An HTTP endpoint that a rule sends to: it keeps what it gets, and answers as a test wants."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """Listens on a free port. `answers` gives the status code for the body of a request, after
    which the request is kept if it was accepted."""

    def __init__(self, answers=lambda body: 200, port=0):
        self.answers = answers
        self.lock = threading.Lock()
        self.got = []
        self.requests = 0
        self.is_stopped = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                # A connection may outlive the server.
                if receiver.is_stopped:
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status = receiver.answers(body)
                with receiver.lock:
                    receiver.requests += 1
                    if 200 <= status < 300:
                        receiver.got.append((dict(self.headers), body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/in"

    def events(self):
        """Bodies as JSON: events in structured form."""
        with self.lock:
            return [json.loads(body) for _, body in self.got]

    def payloads(self):
        with self.lock:
            return [body.decode() for _, body in self.got]

    def stop(self):
        self.is_stopped = True
        self.server.shutdown()
        self.server.server_close()
