"""An HTTP service on loopback that counts its callers."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Counting:
    """Counts the most requests it had at a time, and when they came. Each takes `seconds`."""

    def __init__(self):
        self.inside = self.most = 0
        self.seconds = 0.02
        self.times = []
        lock, counting = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with lock:
                    counting.inside += 1
                    counting.most = max(counting.most, counting.inside)
                    counting.times.append(time.monotonic())
                time.sleep(counting.seconds)
                with lock:
                    counting.inside -= 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
