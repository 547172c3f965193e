"""Real parts for the tests of errors."""

import datetime
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.errors.sdks.service import Service

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def planted_secrets() -> list[dict[str, str]]:
    """Invented secrets in the shapes that real ones have: `text`, and the `secret` in it."""
    return json.loads((HERE / "planted_secrets.json").read_text())


@pytest.fixture(scope="session")
def tls_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An HTTPS service whose certificate nobody has signed but itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Provider(Service):
    """A real HTTP service that answers every method with the same status, headers and body."""

    def says(self, status: int, body: object = None, **headers: str) -> None:  # type: ignore[override]
        said = body.encode() if isinstance(body, str) else body
        super().says(status, said, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def provider() -> Iterator[Provider]:
    service = Provider()
    yield service
    service.close()


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent_port() -> Iterator[str]:
    """A port that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
