"""HTTP/2 over a real socket: many requests on one connection, retried one by one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import h2.config
import h2.connection
import h2.events
import httpx
import pytest

from prefect_resilience import Effect, InDoubt, batch, resilient
from prefect_resilience.http import ResilientTransport
from tests.calls.plain.ways import FAST


class Http2Server:
    """Answers by a script of statuses, the last one for ever; 0 resets the stream. `seen` counts by path."""

    def __init__(self) -> None:
        self.script: dict[str, list[int]] = {}
        self.seen: dict[str, int] = {}
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.initiate_connection()
        paths: dict[int, str] = {}
        with connection, suppress(OSError):
            connection.sendall(http.data_to_send())
            while data := connection.recv(65_536):
                for event in http.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        paths[event.stream_id] = dict(event.headers)[b":path"].decode()
                    elif isinstance(event, h2.events.StreamEnded):
                        self._answer(http, event.stream_id, paths.pop(event.stream_id))
                connection.sendall(http.data_to_send())

    def _answer(self, http: h2.connection.H2Connection, stream: int, path: str) -> None:
        script = self.script.get(path, [200])
        number = self.seen.get(path, 0)
        self.seen[path] = number + 1
        status = script[min(number, len(script) - 1)]
        if status == 0:
            http.reset_stream(stream, error_code=2)
            return
        http.send_headers(stream, [(":status", str(status))])
        http.send_data(stream, f"{path} {status}".encode(), end_stream=True)


@pytest.fixture
def http2() -> Iterator[Http2Server]:
    server = Http2Server()
    yield server
    server.close()


def test_each_request_of_a_connection_is_retried_by_itself(http2):
    http2.script = {"/busy": [503, 503, 200]}
    inner = httpx.HTTPTransport(http1=False, http2=True)
    with httpx.Client(transport=ResilientTransport(retry=FAST, transport=inner)) as client:
        answer = client.get(f"{http2.url}/busy")
        assert (answer.http_version, answer.status_code, answer.text) == ("HTTP/2", 200, "/busy 200")
        with client.stream("GET", f"{http2.url}/well") as stream:
            assert b"".join(stream.iter_bytes()) == b"/well 200"
    assert http2.seen == {"/busy": 3, "/well": 1}
    assert http2.connections == 1


@pytest.mark.parametrize(("status", "calls"), [(429, 2), (0, 1), (503, 1)])
def test_an_effect_is_sent_again_only_after_a_refusal(http2, monkeypatch, tmp_path, status, calls):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/effects.db")
    http2.script = {"/order": [status, 200]}
    inner = httpx.HTTPTransport(http1=False, http2=True)
    with httpx.Client(transport=ResilientTransport(retry=FAST, circuit=None, transport=inner)) as client:

        @resilient(effect=Effect(kind="external", key="order"), retry=FAST)
        def order() -> str:
            return client.post(f"{http2.url}/order").raise_for_status().text

        with batch("orders"):
            if calls == 2:
                assert order() == "/order 200"
            else:
                with pytest.raises(InDoubt):
                    order()
    assert http2.seen == {"/order": calls}
