"""An identity provider on loopback: it signs tokens, publishes its keys, and sells tokens for a secret."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jwt
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://idp.example.org"
AUDIENCE = "kafka"
CLIENT_ID, CLIENT_SECRET = "orders", "never to be seen"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class IdentityProvider:
    """Keys by `kid`, of which the last one signs."""

    def __init__(self) -> None:
        self.keys: dict[str, PrivateKey] = {}
        self.published: set[str] = set()
        self.life_s = 600
        self.fetches = 0
        self.is_away = False
        self.redirects: dict[str, str] = {}
        self.token_requests: list[Mapping[str, str]] = []
        self.add_key("first")

    def add_key(self, kid: str, key: PrivateKey | None = None, *, published: bool = True) -> None:
        self.keys[kid] = key or ec.generate_private_key(ec.SECP256R1())
        if published:
            self.published.add(kid)

    def sign(self, kid: str | None = None, life_s: int | None = None, **claims: object) -> str:
        """Return a token; a claim that is None is left out."""
        kid = kid or list(self.keys)[-1]
        now = int(time.time())
        content = {
            "sub": "alice",
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + (self.life_s if life_s is None else life_s),
            **claims,
        }
        key = self.keys[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        given = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(given, key, algorithm=algorithm, headers={"kid": kid})

    def forge(self, header: Mapping[str, object], hmac_key: bytes | None = None) -> str:
        """Return a token with good claims and this header, unsigned or with an HMAC."""
        claims = self.sign().split(".")[1]
        text = f"{encode(json.dumps(header).encode())}.{claims}"
        if hmac_key is None:
            return f"{text}."
        hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        return f"{text}.{encode(hmac.sign(text.encode(), hmac_key))}"

    def export_public_key(self, kid: str) -> bytes:
        return (
            self.keys[kid]
            .public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def format_jwks(self) -> bytes:
        return json.dumps({"keys": [self._format_jwk(kid) for kid in sorted(self.published)]}).encode()

    def _format_jwk(self, kid: str) -> dict[str, Any]:
        key = self.keys[kid].public_key()
        if isinstance(key, rsa.RSAPublicKey):
            return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key)), "kid": kid, "use": "sig"}
        return {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key)), "kid": kid, "use": "sig"}

    @contextlib.contextmanager
    def serve(self, folder: Path) -> Iterator[str]:
        """Serve /jwks and /token by https; yield the URL, whose certificates are in `folder`/idp-ca.pem."""
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        (folder / "idp-ca.pem").write_bytes(authority.cert_pem.bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA).configure_cert(context)
        handler = type("Handler", (_Handler,), {"provider": self})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join(30)

    def sell_token(self, form: Mapping[str, str], authorization: str) -> str | None:
        """Return a token for the right secret (RFC 6749, section 4.4)."""
        self.token_requests.append(form)
        wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        return self.sign(sub=CLIENT_ID) if authorization == f"Basic {wanted}" else None


class _Handler(http.server.BaseHTTPRequestHandler):
    provider: ClassVar[IdentityProvider]

    def do_GET(self) -> None:
        self.provider.fetches += 1
        target = self.provider.redirects.get(self.path)
        if target is not None:
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/large":
            self._answer(200, bytes((1 << 20) + 1))
        elif self.provider.is_away or self.path != "/jwks":
            self._answer(503, b"{}")
        else:
            self._answer(200, self.provider.format_jwks())

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = dict(urllib.parse.parse_qsl(text))
        token = self.provider.sell_token(form, self.headers["Authorization"])
        if token is None:
            self._answer(401, b'{"error":"invalid_client"}')
        else:
            answer = {"access_token": token, "expires_in": self.provider.life_s, "token_type": "bearer"}
            self._answer(200, json.dumps(answer).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")
