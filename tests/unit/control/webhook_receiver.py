"""A real HTTP server that takes alerts, checks their signatures, and does as it is told."""

import contextlib
import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """`statuses` are given one after another, the last one for ever; without `hold` no answer comes."""

    def __init__(self):
        self.statuses = [200]
        self.requests = []
        self.hold = threading.Event()
        self.hold.set()
        self.headers = {}
        self.url = ""

    @property
    def bodies(self):
        return [json.loads(body) for _, body in self.requests]

    def is_signed(self, index, secret):
        headers, body = self.requests[index]
        signed = headers["X-PDD-Timestamp"].encode() + b"." + body
        expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        return headers["X-PDD-Signature"] == f"sha256={expected}"


@contextlib.contextmanager
def running_receiver():
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((dict(self.headers), body))
            receiver.hold.wait()
            status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/alerts?team=sre"
    try:
        yield receiver
    finally:
        receiver.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
