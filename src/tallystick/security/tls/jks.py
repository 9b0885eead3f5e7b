"""Read a Java key store in Sun's own format, JKS: trusted certificates, and private keys with their chains.

The file is `magic, version, count`, that many entries, and a SHA-1 digest over the password, a fixed phrase
and all that precedes. Private keys are disguised by a stream of chained SHA-1 digests, which is all the
protection they have. Every length is checked against the bytes that are left.

Source: the JDK's sun.security.provider.JavaKeyStore and KeyProtector.
"""

import hashlib
import hmac
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value
from tallystick.security.tls import der
from tallystick.security.tls.der import BadDer

MAGIC: Final = b"\xfe\xed\xfe\xed"
_PHRASE: Final = b"Mighty Aphrodite"
_DIGEST_SIZE: Final = 20
_PRIVATE_KEY, _TRUSTED_CERTIFICATE = 1, 2
# Sun's proprietary algorithm, as the EncryptedPrivateKeyInfo of each key names it.
_KEY_PROTECTOR: Final = "1.3.6.1.4.1.42.2.17.1.1"


class BadJks(TallystickError):
    """A file that is no whole JKS store, or one that the password does not open."""


class JksKey(Value):
    """A private key, still disguised, and its certificates in DER, its own first."""

    alias: str
    protected: bytes
    chain: tuple[bytes, ...]


class JksStore(Value):
    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]


def parse_jks(data: bytes, password: str | None) -> JksStore:
    """Read a store, and verify its digest if a password is given.

    Raises: BadJks.
    """
    if password is not None:
        _check_digest(data, password)
    reader = _Reader(data)
    reader.take(len(MAGIC))
    version = reader.take_int(4)
    if version not in (1, 2):
        raise BadJks(f"a JKS store of version {version}; 1 and 2 are known")
    keys, trusted = [], []
    for _ in range(reader.take_int(4)):
        tag = reader.take_int(4)
        alias = reader.take_text()
        reader.take(8)  # when it was made
        if tag == _PRIVATE_KEY:
            protected = reader.take(reader.take_int(4))
            chain = tuple(_take_certificate(reader, version) for _ in range(reader.take_count()))
            keys.append(JksKey(alias, protected, chain))
        elif tag == _TRUSTED_CERTIFICATE:
            trusted.append(_take_certificate(reader, version))
        else:
            raise BadJks(f"entry {alias!r} has tag {tag}; 1 (private key) and 2 (certificate) are known")
    if reader.left != _DIGEST_SIZE:
        raise BadJks(f"expected a {_DIGEST_SIZE}-byte digest after the entries, found {reader.left} bytes")
    return JksStore(tuple(keys), tuple(trusted))


def reveal_key(key: JksKey, password: str) -> bytes:
    """Return a private key in PKCS#8 DER. Raises: BadJks, also if the password is another."""
    try:
        info = list(der.iter_elements(der.read_only(key.protected, der.SEQUENCE).content))
        if len(info) != 2 or info[1].tag != der.OCTET_STRING:
            raise BadDer("not an EncryptedPrivateKeyInfo")
        algorithm = der.format_oid(der.read_tagged(info[0].content, der.OBJECT_IDENTIFIER).content)
    except BadDer as exc:
        raise BadJks(f"private key {key.alias!r}: {exc}") from exc
    if algorithm != _KEY_PROTECTOR:
        raise BadJks(f"private key {key.alias!r} is protected by {algorithm}, not as JKS does it")
    protected = info[1].content
    if len(protected) < 2 * _DIGEST_SIZE:
        raise BadJks(f"private key {key.alias!r} is cut off")
    salt, disguised = protected[:_DIGEST_SIZE], protected[_DIGEST_SIZE:-_DIGEST_SIZE]
    secret = password.encode("utf-16-be")
    plain = bytes(
        a ^ b for a, b in zip(disguised, _make_key_stream(secret, salt, len(disguised)), strict=True)
    )
    if not hmac.compare_digest(_sha1(secret + plain), protected[-_DIGEST_SIZE:]):
        raise BadJks(f"the password does not open private key {key.alias!r}")
    return plain


def _make_key_stream(secret: bytes, salt: bytes, size: int) -> bytes:
    stream, block = bytearray(), salt
    while len(stream) < size:
        block = _sha1(secret + block)
        stream += block
    return bytes(stream[:size])


def _check_digest(data: bytes, password: str) -> None:
    body, digest = data[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    if not hmac.compare_digest(_sha1(password.encode("utf-16-be") + _PHRASE + body), digest):
        raise BadJks("the password does not open the JKS store, or the file is damaged")


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _take_certificate(reader: "_Reader", version: int) -> bytes:
    if version == 2 and (kind := reader.take_text()) != "X.509":
        raise BadJks(f"a certificate of type {kind!r}; X.509 is known")
    return reader.take(reader.take_int(4))


class _Reader:
    """A position in the bytes of a store."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise BadJks(f"{size} bytes are promised at byte {self._at}, {self.left} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def take_int(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def take_count(self) -> int:
        """Read the length of a list whose items have at least four bytes each."""
        count = self.take_int(4)
        if count * 4 > self.left:
            raise BadJks(f"{count} items are promised at byte {self._at}, {self.left} bytes are there")
        return count

    def take_text(self) -> str:
        return self.take(self.take_int(2)).decode("utf-8", "replace")
