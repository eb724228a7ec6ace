"""A token issuer on 127.0.0.1: its public keys, and a token endpoint for clients with an id and a secret.

with TokenIssuer(directory) as issuer:
    issuer.url("/keys")        the JWKS document, over https with a certificate of `issuer.authority`
    issuer.url("/token")       tokens for CLIENT_ID and CLIENT_SECRET
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT_ID, CLIENT_SECRET, USER = "broker-client", "canary-of-the-client", "broker"
ISSUER, AUDIENCE = "https://issuer.example", "kafka"
_EC = trustme.KeyType.ECDSA


class TokenIssuer:
    """A running issuer. Attributes can be changed while it runs."""

    def __init__(self, directory: Path, *, host: str = "127.0.0.1", is_tls: bool = True) -> None:
        """``host`` is the name in the certificate."""
        self.lifetime_s = 3600.0
        #: an answer of this status instead of a token or the keys
        self.status = 200
        #: replaces the answer of the token endpoint
        self.answer: Callable[[], bytes] | None = None
        #: the forms of the requests for tokens, and how often the keys were read
        self.forms: list[dict[str, list[str]]] = []
        self.key_requests = 0
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._is_tls = is_tls
        self.rotate("one")
        authority = trustme.CA(key_type=_EC)
        self.authority = directory / "issuer-ca.pem"
        authority.cert_pem.write_to_path(self.authority)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.key_requests += 1
                self._send(issuer.document())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                issuer.forms.append(form)
                pair = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
                if self.headers["Authorization"] != f"Basic {pair}":
                    self._send(b'{"error": "invalid_client"}', 401)
                    return
                made = issuer.answer or (lambda: json.dumps({"access_token": issuer.token()}).encode())
                self._send(made())

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the client does not trust this server, or has had enough
                    super().handle()

            def _send(self, data: bytes, status: int = 200) -> None:
                self.send_response(status if issuer.status == 200 else issuer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if is_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(host, key_type=_EC).configure_cert(context)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, path: str) -> str:
        return f"{'https' if self._is_tls else 'http'}://127.0.0.1:{self._server.server_port}{path}"

    def rotate(self, key_id: str) -> None:
        """Sign with a new key from now on. The others stay in the document."""
        self._keys[key_id] = ec.generate_private_key(ec.SECP256R1())
        self._key_id = key_id

    def document(self) -> bytes:
        rows: list[dict[str, Any]] = [
            {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id}
            for key_id, key in self._keys.items()
        ]
        return json.dumps({"keys": rows}).encode()

    def token(self, *, lifetime_s: float | None = None, **changes: Any) -> str:
        now = time.time()
        expires = now + (self.lifetime_s if lifetime_s is None else lifetime_s)
        claims = {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": expires, **changes}
        return jwt.encode(claims, self._keys[self._key_id], "ES256", {"kid": self._key_id})

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
