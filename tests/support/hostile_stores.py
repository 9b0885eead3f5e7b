"""Hostile key stores, certificates, tokens and settings of a login, and hostile bytes in a TLS handshake."""

import hashlib
import json
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support.hostile import mutate
from tests.support.hostile_logins import TEXT_LENGTH_MAX, require

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl.jaas import BadJaasConfig, parse_jaas_config
from tallystick.security.sasl.jwt_claims import ClaimRules
from tallystick.security.sasl.jwt_validator import build_jwt_validator
from tallystick.security.sasl.key_set import BadKeySet, parse_key_set
from tallystick.security.sasl.mechanism import KeyNeeded
from tallystick.security.sasl.oauthbearer import TokenRefused
from tallystick.security.tls import jks
from tallystick.security.tls.certificates import parse_certificate
from tallystick.security.tls.contexts import build_client_context, load_server_tls
from tallystick.security.tls.der import BadDer
from tallystick.security.tls.failures import explain_handshake_failure
from tallystick.security.tls.names import read_subject_name
from tallystick.security.tls.settings import TlsSettings
from tallystick.security.tls.stores import find_store_type, load_key_store, load_trust_store

VECTOR: Final = Path(__file__).parents[1] / "vectors" / "stores" / "fuzzed.pem"
NOW_MS = 1_700_000_000_000
CLAIMS = {"sub": "alice", "iat": NOW_MS // 1000, "exp": NOW_MS // 1000 + 60, "aud": ["kafka"], "scope": "a b"}


@dataclass(frozen=True)
class Parser:
    """A function of bytes, valid inputs for it, and the errors that it declares."""

    name: str
    parse: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    declared: type[TallystickError]


@cache
def _key_pair() -> tuple[str, str, bytes]:
    """Return a key and its certificate in PEM, and the certificate in DER; always the same, as inputs are."""
    key, mark, rest = VECTOR.read_text().partition("-----BEGIN CERTIFICATE")
    return key, mark + rest, ssl.PEM_cert_to_DER_cert(mark + rest)


def _jks_store(certificate: bytes) -> bytes:
    """Return a JKS store with a key that is no key, and a certificate."""
    alias = b"\0\6broker"
    shown = b"\0\5X.509" + len(certificate).to_bytes(4, "big") + certificate
    protected = b"\x30\x1f\x30\x0e\x06\x0a\x2b\x06\x01\x04\x01\x2a\x02\x11\x01\x01\x05\x00\x04\x0d" + bytes(
        13
    )
    body = jks.MAGIC + bytes((0, 0, 0, 2, 0, 0, 0, 2))
    body += bytes((0, 0, 0, 1)) + alias + bytes(8) + len(protected).to_bytes(4, "big") + protected
    body += bytes((0, 0, 0, 1)) + shown
    body += bytes((0, 0, 0, 2)) + alias + bytes(8) + shown
    return body + hashlib.sha1(body).digest()


def _parse_jks(data: bytes) -> None:
    for key in jks.parse_jks(data, None).keys:
        jks.reveal_key(key, "changeit")


def _load_pem_key(data: bytes) -> None:
    text = Secret(data.decode("utf-8", "replace"))
    load_key_store(TlsSettings(ssl_keystore_key=text, ssl_keystore_certificate_chain=Secret("")))


def _load_pem_trust(data: bytes) -> None:
    load_trust_store(TlsSettings(ssl_truststore_certificates=Secret(data.decode("utf-8", "replace"))))


def _make_token_parsers() -> tuple[Callable[[bytes], object], Callable[[bytes], object], bytes]:
    """Return a parser of tokens that takes one alone, one of claims that it signs itself, and that token."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    token = jwt.encode(CLAIMS, key, algorithm="EdDSA", headers={"kid": "one"})
    jwk = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key()))
    keys = parse_key_set(json.dumps({"keys": [{**jwk, "kid": "one", "use": "sig"}]}).encode())
    validate = build_jwt_validator(keys.get, ClaimRules(), lambda: NOW_MS)
    signed = token.rpartition(".")[0]

    def check_token(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            made = validate(text)
        except KeyNeeded as exc:  # another kid, and claims that are worth a look for its key
            raise TokenRefused(str(exc)) from exc
        require(text.rpartition(".")[0] == signed, "LGN-2", f"a token that was not signed is {made.subject}")

    def check_claims(data: bytes) -> None:
        text = jwt.PyJWS().encode(data, key, algorithm="EdDSA", headers={"kid": "one"})
        validate(text).subject.encode()  # a name that is believed can be written

    return check_token, check_claims, token.encode()


@cache
def list_parsers() -> tuple[Parser, ...]:
    """Return every parser that bytes of a peer, or of a file, reach."""
    key, certificate, der = _key_pair()
    check_token, check_claims, token = _make_token_parsers()
    pem = (key + certificate).encode()
    store = _jks_store(der)
    claims = (
        json.dumps(CLAIMS).encode(),
        b'{"sub":"\\ud800","iat":1700000000,"exp":1700000060}',
        b'{"sub":"a","iat":1e999,"exp":NaN}',
        b"[" * 5_000,
        b'{"exp":' + b"9" * 5_000 + b"}",
    )
    jaas = (
        b'org.apache.kafka.common.security.plain.PlainLoginModule required username="U" password="P\\"x";',
        b"/* c */ a.ScramLoginModule optional // x\n username=u password='p' tokenauth=\"true\";",
    )
    jwks = json.dumps({"keys": [{"kid": "a", "kty": "EC", "use": "sig"}, {"kty": "oct", "k": "AA"}]}).encode()
    oid = bytes.fromhex("3082010a") + b"\x06\x82\x01\x06" + b"\xff" * 261 + b"\x01"
    return (
        Parser("certificate", parse_certificate, (der,), BadDer),
        Parser("subject", read_subject_name, (der,), BadDer),
        Parser("object identifier", read_subject_name, (_replace_subject(der, oid),), BadDer),
        Parser("store type", find_store_type, (der, store, pem, oid), TallystickError),
        Parser("JKS", _parse_jks, (store,), jks.BadJks),
        Parser("PEM key store", _load_pem_key, (pem,), BadConfig),
        Parser("PEM trust store", _load_pem_trust, (certificate.encode(),), BadConfig),
        Parser("JAAS", lambda data: parse_jaas_config(data.decode("utf-8", "replace")), jaas, BadJaasConfig),
        Parser("signed token", check_token, (token,), TokenRefused),
        Parser("claims", check_claims, claims, TokenRefused),
        Parser("key set", parse_key_set, (jwks,), BadKeySet),
    )


def _replace_subject(certificate: bytes, content: bytes) -> bytes:
    """Return a certificate whose subject has one attribute, named by `content`: an object identifier."""
    identifier = content[4:]
    attribute = b"\x30" + _length(len(identifier) + 3) + identifier + b"\x0c\x01x"
    relative = b"\x31" + _length(len(attribute)) + attribute
    subject = b"\x30" + _length(len(relative)) + relative
    period = b"\x30\x1e" + b"\x17\x0d250101000000Z" * 2
    fields = b"\x02\x01\x01" + b"\x30\x00\x30\x00" + period + subject + b"\x30\x00"
    signed = b"\x30" + _length(len(fields)) + fields
    return b"\x30" + _length(len(signed)) + signed


def _length(size: int) -> bytes:
    return b"\x82" + size.to_bytes(2, "big")


def attack_parser(rng: random.Random) -> bool:
    """Give a damaged input to one parser; return whether it was taken."""
    parser = rng.choice(list_parsers())
    data = rng.choice(parser.seeds)
    if rng.random() < 0.97:
        data = mutate(data, rng)
    try:
        parser.parse(data)
    except parser.declared as exc:
        require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-4", f"{parser.name}: {len(str(exc))} characters")
        return False
    except BaseException as exc:
        exc.add_note(f"{parser.name}: {data.hex()}")
        raise
    return True


# --------------------------------------------------------------------------------- TLS


@cache
def contexts() -> tuple[ssl.SSLContext, ...]:
    """Return a listener's context, and those of clients: of TLS 1.3, and of 1.2."""
    key, certificate, _ = _key_pair()
    server = TlsSettings(ssl_keystore_key=Secret(key), ssl_keystore_certificate_chain=Secret(certificate))
    clients = [
        build_client_context(
            TlsSettings(ssl_truststore_certificates=Secret(certificate), ssl_enabled_protocols=(version,))
        )
        for version in ("TLSv1.3", "TLSv1.2")
    ]
    return load_server_tls(server).context, *clients


TLS_1_0_HELLO = bytes.fromhex(
    "16030100410100003d0301"
    + "11" * 32
    + "00"
    + "0016"
    + "c014c013c00ac009003900380035003300320016000a"
    + "0100"
)
OTHER_HELLOS = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    TLS_1_0_HELLO,
    b"\x80\x2e\x01\x03\x01" + bytes(43),
    b"\0\0\0\x0b\0\x12\0\0\0\0\0\1\xff\xff\0\0",
    b"\x16\x03\x03\xff\xff" + b"\1" * 400,
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x16\x03\x03\x00\x04\x01\xff\xff\xff",
)


class TlsPair:
    """A listener's end and a client's, whose bytes are carried by hand."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext) -> None:
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._from_server, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.to_server, self._from_server, server_side=True)
        self.client = client.wrap_bio(self.to_client, self._from_client, server_hostname="localhost")
        self.is_open = False

    def start_client(self) -> bytes:
        """Let the client say what it can; return it."""
        try:
            self.client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._from_client.read()

    def give(self, data: bytes, piece: int) -> bytes:
        """Give bytes to the server in pieces, and return what it says. Raises: ssl.SSLError."""
        for at in range(0, len(data), piece):
            self.to_server.write(data[at : at + piece])
            try:
                if not self.is_open:
                    self.server.do_handshake()
                    self.is_open = True
                while self.is_open and self.server.read(65_536):
                    pass
            except ssl.SSLWantReadError:
                continue
        return self._from_server.read()


def attack_tls(rng: random.Random) -> bool:
    """Run a handshake whose client's half is damaged; return whether it was completed."""
    server, *clients = contexts()
    pair = TlsPair(rng.choice(clients), server)
    piece = rng.choice((1, 5, 6, 1 << 16, 1 << 16, 1 << 16))
    damage_at = rng.randrange(4)
    is_damaged = False
    try:
        for flight in range(3):
            said = pair.start_client()
            if flight == damage_at:
                is_damaged, said = True, _damage_flight(said, rng)
            if flight == 2:
                said += rng.choice((b"", b"", TLS_1_0_HELLO, b"\x17\x03\x03\x00\x05hello"))
            pair.to_client.write(pair.give(said, piece))
    except ssl.SSLError as exc:
        require(len(explain_handshake_failure(exc)) <= TEXT_LENGTH_MAX, "LGN-4", "a long log line")
    require(not (pair.is_open and is_damaged and damage_at == 0), "LGN-2", "a damaged hello was taken")
    return pair.is_open


def _damage_flight(said: bytes, rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0:
            return said[: rng.randrange(len(said) + 1) // 2]
        case 1:
            return rng.choice(OTHER_HELLOS)
        case 2:
            return rng.randbytes(rng.randrange(1, 300))
        case _:
            return mutate(said, rng) + b"\0"
