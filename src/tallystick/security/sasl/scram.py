"""SCRAM (RFC 5802, RFC 7677): keys and messages, shared by both sides.

    client-first    n,,n=user,r=<client nonce>
    server-first    r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final    c=biws,r=<both nonces>,p=<proof>
    server-final    v=<signature>, or e=<error>

The server keeps StoredKey and ServerKey, from which neither the password nor a proof can be computed; each
side proves to the other that it knows its share. Kafka's liberties (ScramFormatter, ScramMessages): names
and passwords are UTF-8 as they are, without SASLprep; no channel binding; the authorization id is empty or
the user's own name.

Attributes come in a fixed order. One that is missing, doubled or out of place fails, and so does a reserved
`m=`: "its presence in a client or a server message MUST cause authentication failure when the attribute is
parsed by the other end" (RFC 5802, section 5.1).
"""

import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from hmac import digest as hmac_digest
from secrets import token_bytes
from typing import Final, TypeVar

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.secret import HIDDEN
from tallystick.kernel.value import Value

ITERATIONS_MIN: Final = 4096
"""RFC 7677, section 4: the iteration count "SHOULD be at least 4096"; Kafka's ScramMechanism demands it."""
SERVER_ITERATIONS_MAX: Final = 16_384
"""Largest count that API 51 stores (Kafka's ScramControlManager)."""
SALT_BYTES_MAX: Final = 1_024
"""Longest salt that API 51 stores; Kafka has no limit. A stranger is answered with it before any login."""
CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""Largest count a client computes: half a second. A hostile server could ask for hours."""
MESSAGE_BYTES_MAX: Final = 8192
"""Largest message read here; names and nonces are far shorter."""
GS2_HEADER: Final = "n,,"
_NONCE_BYTES: Final = 18

M = TypeVar("M")


class ScramMechanism(Value):
    """One member of the SCRAM family. `number` is its type in APIs 50 and 51 (KIP-554)."""

    name: str
    hash_name: str
    number: int

    @property
    def hash_bytes(self) -> int:
        """Length of its keys and of a salted password."""
        return new_hash(self.hash_name).digest_size


SCRAM_SHA_256: Final = ScramMechanism("SCRAM-SHA-256", "sha256", 1)
SCRAM_SHA_512: Final = ScramMechanism("SCRAM-SHA-512", "sha512", 2)
SCRAM_MECHANISMS: Final = {each.name: each for each in (SCRAM_SHA_256, SCRAM_SHA_512)}


class BadScramMessage(TallystickError):
    """A message is not what RFC 5802 allows at this point. The text quotes nothing of it."""


# -------------------------------------------------------------------------------------- keys


class ScramCredential(Value):
    """Stored form of a password. Its repr shows no key: ServerKey is enough to pose as the server."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({HIDDEN}, iterations={self.iterations})"


def compute_salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return "SaltedPassword := Hi(Normalize(password), salt, i)" (RFC 5802, section 3), without Normalize.

    Cost: 1.6 ms for 4096 iterations of SHA-256.
    """
    return pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def derive_credential(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return what the server keeps; API 51 carries the salted password, and nothing else of it is kept."""
    stored_key = compute_hash(mechanism, compute_client_key(mechanism, salted_password))
    return ScramCredential(salt, stored_key, compute_server_key(mechanism, salted_password), iterations)


def compute_client_key(mechanism: ScramMechanism, salted_password: bytes) -> bytes:
    """Return "ClientKey := HMAC(SaltedPassword, "Client Key")"."""
    return compute_hmac(mechanism, salted_password, b"Client Key")


def compute_server_key(mechanism: ScramMechanism, salted_password: bytes) -> bytes:
    """Return "ServerKey := HMAC(SaltedPassword, "Server Key")"."""
    return compute_hmac(mechanism, salted_password, b"Server Key")


def compute_hmac(mechanism: ScramMechanism, key: bytes, content: bytes) -> bytes:
    """Return the HMAC of `content` under `key`."""
    return hmac_digest(key, content, mechanism.hash_name)


def compute_hash(mechanism: ScramMechanism, content: bytes) -> bytes:
    """Return the mechanism's hash of `content`."""
    return new_hash(mechanism.hash_name, content).digest()


def xor_bytes(left: bytes, right: bytes) -> bytes:
    """Return the exclusive-or of two texts of one length."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def generate_nonce() -> str:
    """Return a nonce of 144 random bits, printable and without a comma."""
    return encode_nonce(token_bytes(_NONCE_BYTES))


def encode_nonce(random: bytes) -> str:
    """Return random bytes as text, printable and without a comma."""
    return urlsafe_b64encode(random).rstrip(b"=").decode()


# ---------------------------------------------------------------------------------- messages

_PRINTABLE: Final = "[\\x21-\\x2b\\x2d-\\x7e]+"  # RFC 5802: "printable", which has no comma
_SASL_NAME: Final = "(?:[^\\0,=]|=2C|=3D)+"
_VALUE: Final = "[^\\0,]+"
_BASE64: Final = "(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_EXTENSIONS: Final = f"(?P<extensions>(?:,[A-Za-z]={_VALUE})*)"
# Kafka writes its extension with a name of several letters.
_KAFKA_EXTENSIONS: Final = f"(?P<extensions>(?:,[A-Za-z]+={_VALUE})*)"

_CLIENT_FIRST: Final = re.compile(
    f"(?P<gs2>n,(?:a=(?P<authzid>{_SASL_NAME}))?,)"
    f"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE}){_KAFKA_EXTENSIONS})"
)
_SERVER_FIRST: Final = re.compile(
    f"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    f"(?P<unsigned>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(f"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64})){_EXTENSIONS}")
# Letters that have a meaning of their own, and so are no extensions; `m` is reserved.
_KNOWN_ATTRIBUTES: Final = frozenset("anmrcsipve")


class ClientFirst(Value):
    """`gs2_header` returns in the last message, `bare` is part of what is signed."""

    gs2_header: str
    authorization_id: str
    username: str
    nonce: str
    extensions: tuple[tuple[str, str], ...]
    bare: str


class ServerFirst(Value):
    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(Value):
    """`unsigned` is all of the message in front of the proof."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    unsigned: str


class ServerFinal(Value):
    """Either the signature, or the error."""

    signature: bytes
    error: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Parse client-first-message. Raises: BadScramMessage."""
    return _parse(
        "client-first-message",
        _CLIENT_FIRST,
        message,
        lambda match, extensions: ClientFirst(
            match["gs2"],
            unescape_name(match["authzid"] or ""),
            unescape_name(match["name"]),
            match["nonce"],
            extensions,
            match["bare"],
        ),
    )


def parse_server_first(message: bytes) -> ServerFirst:
    """Parse server-first-message. Raises: BadScramMessage."""
    return _parse(
        "server-first-message",
        _SERVER_FIRST,
        message,
        lambda match, _: ServerFirst(match["nonce"], b64decode(match["salt"]), int(match["iterations"])),
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """Parse client-final-message. Raises: BadScramMessage."""
    return _parse(
        "client-final-message",
        _CLIENT_FINAL,
        message,
        lambda match, _: ClientFinal(
            b64decode(match["binding"]), match["nonce"], b64decode(match["proof"]), match["unsigned"]
        ),
    )


def parse_server_final(message: bytes) -> ServerFinal:
    """Parse server-final-message. Raises: BadScramMessage."""
    return _parse(
        "server-final-message",
        _SERVER_FINAL,
        message,
        lambda match, _: ServerFinal(b64decode(match["signature"] or ""), match["error"] or ""),
    )


def escape_name(name: str) -> str:
    """Return a name with "," as "=2C" and "=" as "=3D" (RFC 5802, section 5.1)."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """Undo `escape_name`; what else follows a "=" was refused before."""
    return text.replace("=2C", ",").replace("=3D", "=")


def encode_base64(content: bytes) -> str:
    """Return base64 as SCRAM writes it, with padding."""
    return b64encode(content).decode()


def _parse(
    name: str,
    pattern: "re.Pattern[str]",
    message: bytes,
    build: "Callable[[re.Match[str], tuple[tuple[str, str], ...]], M]",
) -> M:
    if len(message) > MESSAGE_BYTES_MAX:
        raise BadScramMessage(f"{name} has {len(message)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    try:
        match = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        raise BadScramMessage(f"{name} is not UTF-8") from None
    if match is None:
        raise BadScramMessage(f"{name} does not have the attributes of RFC 5802 in their order")
    extensions = tuple(
        (key, value)
        for key, _, value in (part.partition("=") for part in match["extensions"].split(",") if part)
    )
    names = [key for key, _ in extensions]
    if len(set(names)) < len(names) or _KNOWN_ATTRIBUTES & set(names):
        raise BadScramMessage(f"{name} has an attribute twice, out of order, or reserved")
    return build(match, extensions)
