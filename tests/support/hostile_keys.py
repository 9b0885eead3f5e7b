"""Hostile key sets of identity providers, tokens checked with them, and logins that wait for a key."""

import asyncio
import base64
import hmac
import json
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support.hostile import mutate
from tests.support.hostile_logins import TEXT_LENGTH_MAX, make_frame, require

from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login import LoginRefused
from tallystick.broker.server.login_gate import LoginGate
from tallystick.broker.server.login_rules import DOCUMENT_BYTES_MAX, LoginRules
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.secret import Secret
from tallystick.protocol import encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tallystick.security.principals import ANONYMOUS
from tallystick.security.sasl.jwt_claims import ClaimRules
from tallystick.security.sasl.jwt_validator import build_jwt_validator
from tallystick.security.sasl.key_set import BadKeySet, FetchIntervals, Jwk, KeySetFailure, parse_key_set
from tallystick.security.sasl.mechanism import KeyNeeded
from tallystick.security.sasl.oauthbearer import (
    OAUTHBEARER,
    OauthBearerClient,
    OauthBearerServer,
    TokenRefused,
)

NOW_MS = 1_700_000_000_000
CLAIMS: Final = {"sub": "alice", "iat": NOW_MS // 1000, "exp": NOW_MS // 1000 + 60}
# Of the processor: a signature takes a millisecond, and everyone waits for it.
VALIDATION_S_MAX: Final = 0.5
HOSTILE_KIDS: Final = (
    "ed",
    "ec",
    "ed",
    "ec",
    "",
    "k" * 1_000,
    "k" * 1_000_000,
    "\ud800",
    "\0",
    5,
    None,
    [],
    {},
)
HOSTILE_ALGORITHMS: Final = (
    "EdDSA",
    "ES256",
    "RS256",
    "PS512",
    "HS256",
    "none",
    "None",
    "",
    5,
    None,
    ["RS256"],
)


FITTING: Final = {"RSA": ("RS256", "RS256", "PS512"), "EC": ("ES256", "ES512"), "OKP": ("EdDSA",)}
NO_KEYS: Final[Mapping[str, Jwk]] = {}


def encode_bytes(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


NUMBERS: Final = (
    "",
    "AA",
    "AQ",  # e=1: whatever is signed, is its own signature
    "Ag",
    "AQAB",
    "!!!",
    "é",
    encode_bytes(b"\0" * 32),
    encode_bytes(b"\xff" * 32),
    encode_bytes(b"\xff" * 256),
    encode_bytes(b"\xff" * 2_048),
    encode_bytes(b"\xff" * 2_049),
    encode_bytes(b"\x7f" + b"\xff" * 400_000),
    "A" * 1_000_001,
    5,
    -1,
    None,
    [],
    {"n": "AQAB"},
    True,
)


@dataclass(frozen=True)
class Signer:
    """A key of the provider, always the same, and its public half as a JWK."""

    kid: str
    algorithm: str
    key: Any
    jwk: Mapping[str, object]


@cache
def signers() -> tuple[Signer, ...]:
    edwards = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    curve = ec.derive_private_key(0x1234567, ec.SECP256R1())
    shown = (
        jwt.algorithms.OKPAlgorithm.to_jwk(edwards.public_key()),
        jwt.algorithms.ECAlgorithm.to_jwk(curve.public_key()),
    )
    return tuple(
        Signer(kid, algorithm, key, {**json.loads(jwk), "kid": kid, "use": "sig"})
        for kid, algorithm, key, jwk in zip(
            ("ed", "ec"), ("EdDSA", "ES256"), (edwards, curve), shown, strict=True
        )
    )


def make_jwk(rng: random.Random) -> object:
    """Return a key of the provider, or one that differs from it, or something else."""
    made: dict[str, Any] = dict(rng.choice(signers()).jwk)
    if rng.random() < 0.4:
        return made
    if rng.random() < 0.1:
        return rng.choice((None, 5, "key", [], {}, [made]))
    if rng.random() < 0.4:
        made = {"kid": made["kid"], "kty": "RSA", "n": rng.choice(NUMBERS), "e": rng.choice(NUMBERS)}
    fields: dict[str, Sequence[Any]] = {
        "kid": HOSTILE_KIDS,
        "kty": ("RSA", "EC", "OKP", "oct", "none", "", 5, None, ["RSA"], "AKP"),
        "alg": HOSTILE_ALGORITHMS,
        "use": ("sig", "enc", "", 5, None),
        "key_ops": (["verify"], ["encrypt"], 5),
        "crv": ("P-256", "P-521", "secp256k1", "Ed25519", "Ed448", "X25519", "", 5, None, ["P-256"]),
        **dict.fromkeys(("n", "e", "x", "y", "d", "k", "p"), NUMBERS),
    }
    for name in rng.sample(list(fields), rng.choice((1, 1, 2, 4))):
        made[name] = rng.choice(fields[name])
    if rng.random() < 0.2:
        del made[rng.choice(list(made))]
    return made


def make_document(rng: random.Random) -> bytes:
    """Return a JWKS document, or what a broken or hostile endpoint answers instead, as far as it is read."""
    return _make_document(rng)[:DOCUMENT_BYTES_MAX]


def _make_document(rng: random.Random) -> bytes:
    listed: Any = [make_jwk(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 8)))]
    if rng.random() < 0.03:
        listed = [dict(rng.choice(signers()).jwk)] * 5_000
    document: Any = {"keys": listed}
    if rng.random() < 0.15:
        odd = (listed, {"keys": {"ed": listed}}, {"keys": None}, {"KEYS": listed}, None, 5, "keys", {})
        document = rng.choice(odd)
    data = json.dumps(document, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    draw = rng.random()
    if draw < 0.03:
        depth = rng.choice((10, 1_000, 100_000))
        nested = (b'{"keys":' * depth, b"[" * depth, b'{"keys":[{"kid":"ed","x":' + b"[" * depth)
        return rng.choice(nested)
    if draw < 0.05:
        return b'{"keys":[{"kid":"ed","n":' + b"9" * rng.choice((10, 10_000, 500_000)) + b"}]}"
    if draw < 0.08:
        return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    return mutate(data, rng) if draw < 0.2 else data


def make_token(rng: random.Random, keys: Mapping[str, Jwk] = NO_KEYS) -> tuple[str, bool]:
    """Return a token, and whether a key of the provider has signed it.

    Args:
        keys: what a forged token may name; its algorithm then mostly fits the key.
    """
    signer = rng.choice(signers())
    if rng.random() < 0.3:
        return jwt.encode(CLAIMS, signer.key, signer.algorithm, {"kid": signer.kid}), True
    kid: object = rng.choice((*keys, *keys, signer.kid, rng.choice(HOSTILE_KIDS)))
    algorithm: object = rng.choice(HOSTILE_ALGORITHMS)
    if isinstance(kid, str) and kid in keys and rng.random() < 0.8:
        algorithm = rng.choice(FITTING.get(str(keys[kid].get("kty")), HOSTILE_ALGORITHMS))
    header = {"alg": algorithm, "kid": kid, "typ": "JWT"}
    if rng.random() < 0.2:
        header |= rng.choice(({"crit": ["b64"], "b64": False}, {"b64": False}, {"jwk": dict(signer.jwk)}))
    signed = f"{encode_bytes(json.dumps(header).encode())}.{encode_bytes(json.dumps(CLAIMS).encode())}"
    return f"{signed}.{_forge(signed.encode(), signer, rng)}", False


def _forge(signed: bytes, signer: Signer, rng: random.Random) -> str:
    shown = json.dumps(dict(signer.jwk)).encode()
    forgeries = (
        b"",
        b"\0" * 64,
        b"\xff" * 256,
        hmac.digest(shown, signed, "sha256"),
        hmac.digest(b"", signed, "sha256"),
        _pad(signed, rng.choice((256, 2_048))),
    )
    return encode_bytes(rng.choice(forgeries))


def _pad(signed: bytes, size: int) -> bytes:
    """Return EMSA-PKCS1-v1_5 of a text, which is its signature under any key with e=1."""
    prefix = bytes.fromhex("3031300d060960864801650304020105000420")
    content = prefix + sha256(signed).digest()
    return b"\0\1" + b"\xff" * (size - len(content) - 3) + b"\0" + content


def attack_keys(rng: random.Random) -> bool:
    """Read one document, and check tokens with its keys; return whether a token was believed."""
    try:
        keys = parse_key_set(make_document(rng))
    except BadKeySet as exc:
        require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-4", f"{len(str(exc))} characters")
        return False
    require(all(isinstance(kid, str) for kid in keys), "LGN-1", "a kid is no text")
    validate = build_jwt_validator(keys.get, ClaimRules(), lambda: NOW_MS)
    is_believed = False
    for _ in range(3):
        token, is_genuine = make_token(rng, keys)
        began = time.thread_time()
        try:
            validate(token)
        except (TokenRefused, KeyNeeded) as exc:
            require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-4", f"{len(str(exc))} characters")
        else:
            require(is_genuine, "LGN-2", f"a forged token is believed: {token[:500]}")
            is_believed = True
        took_s = time.thread_time() - began
        require(took_s <= VALIDATION_S_MAX, "LGN-4", f"a token took {took_s:.2f} s")
    return is_believed


# ------------------------------------------------------------------------- logins that wait


@dataclass
class Endpoint:
    """Answers each fetch with the next document, and the last one for ever."""

    documents: list[bytes | None]
    fetches: int = 0

    def fetch(self) -> bytes:
        document = self.documents[min(self.fetches, len(self.documents) - 1)]
        self.fetches += 1
        if document is None:
            raise KeySetFailure("the endpoint does not answer")
        return document


INTERVALS: Final = FetchIntervals(refresh_ms=1, retry_backoff_ms=1, retry_backoff_max_ms=50)
PATIENCE_S: Final = 20.0


def attack_late_keys(rng: random.Random) -> bool:
    """Let a few clients log in whose key may come late, or never; return whether one of them did."""
    return asyncio.run(_attack_late_keys(rng))


async def _attack_late_keys(rng: random.Random) -> bool:
    good = json.dumps({"keys": [dict(rng.choice(signers()).jwk)]}).encode()
    later = [rng.choice((None, make_document(rng), good)) for _ in range(rng.randrange(4))]
    endpoint = Endpoint([good, *later])
    keys = SigningKeys("OUTSIDE", endpoint.fetch, INTERVALS)
    validate = build_jwt_validator(keys.find, ClaimRules(), lambda: NOW_MS)
    rules = LoginRules(
        {OAUTHBEARER: lambda: OauthBearerServer(validate)},
        0,
        524_288,
        timeout_s=PATIENCE_S,
        failure_delay_s=0,
        now_ms=lambda: NOW_MS,
        under_way=HandshakeTable(100),
        signing_keys=keys,
    )
    async with asyncio.timeout(PATIENCE_S):
        await keys.start()
        clients = [asyncio.ensure_future(_log_in(rules, rng)) for _ in range(rng.randrange(1, 6))]
        for client in clients:
            if rng.random() < 0.15:
                await asyncio.sleep(0)
                client.cancel()  # its connection is gone
        if rng.random() < 0.1:
            keys.stop()
        results = await asyncio.gather(*clients, return_exceptions=True)
        keep_fresh = keys._task
        keys.stop()
    require(not keys._waiting, "LGN-4", f"{len(keys._waiting)} logins wait for ever")
    if keep_fresh is not None and keep_fresh.done() and not keep_fresh.cancelled():
        require(keep_fresh.exception() is None, "LGN-1", "the keys are fetched no more")
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, asyncio.CancelledError):
            raise each
    return any(each is True for each in results)


async def _log_in(rules: LoginRules, rng: random.Random) -> bool:
    """Show one token, once or more often; return whether that was enough."""
    failures = LogThrottle(lambda: 0.0)
    failures.take()  # the line that would be logged
    gate = LoginGate(rules, asyncio.get_running_loop(), failures, lambda _: None, "host")
    token, is_genuine = make_token(rng)
    message = OauthBearerClient(Secret(token)).respond(None)
    handshake = make_frame(ApiKey.SASL_HANDSHAKE, 1, encode(SaslHandshakeRequest(mechanism=OAUTHBEARER), 1))
    shown = make_frame(ApiKey.SASL_AUTHENTICATE, 1, encode(SaslAuthenticateRequest(auth_bytes=message), 1))
    try:
        for data in (handshake, *[shown] * rng.choice((1, 1, 2, 3))):
            answer = gate.take(memoryview(data)[4:], "peer")
            if isinstance(answer, Awaitable):
                await answer
            if gate.has_failed:
                break
    except LoginRefused as exc:
        require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-4", f"{len(str(exc))} characters")
    finally:
        gate.stop()
    is_in = gate.principal is not ANONYMOUS
    require(is_genuine or not is_in, "LGN-2", f"a forged token logged in: {token[:500]}")
    return is_in
