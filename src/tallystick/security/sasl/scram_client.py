"""The client side of SCRAM. The work that a server can cause is bounded, and it must prove itself [LGN-5]."""

from hmac import compare_digest
from typing import Final

from tallystick.kernel.secret import Secret
from tallystick.security.sasl.mechanism import SaslPeerRefused
from tallystick.security.sasl.scram import (
    CLIENT_ITERATIONS_MAX,
    GS2_HEADER,
    ITERATIONS_MIN,
    BadScramMessage,
    ScramMechanism,
    ServerFirst,
    compute_client_key,
    compute_hash,
    compute_hmac,
    compute_salted_password,
    compute_server_key,
    encode_base64,
    escape_name,
    generate_nonce,
    parse_server_final,
    parse_server_first,
    xor_bytes,
)

_CACHED_MAX: Final = 16


class SaltedPasswords:
    """Salted passwords of the logins so far: a client that reconnects computes PBKDF2 once.

    One for each client. RFC 5802 expects it: the salt is likely to be the same at the next login.
    """

    def __init__(self) -> None:
        self._cached: dict[tuple[ScramMechanism, Secret, bytes, int], bytes] = {}

    def compute(self, mechanism: ScramMechanism, password: Secret, salt: bytes, iterations: int) -> bytes:
        """Return the salted password, from the cache if it was computed before."""
        key = mechanism, password, salt, iterations
        salted = self._cached.get(key)
        if salted is None:
            salted = compute_salted_password(mechanism, password.reveal(), salt, iterations)
            while len(self._cached) >= _CACHED_MAX:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = salted
        return salted


class ScramClient:
    """The client side of one SCRAM login: two messages, then the server's signature is verified."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: Secret,
        cache: SaltedPasswords | None = None,
        nonce: str | None = None,
    ) -> None:
        """Create a client that has said nothing.

        Args:
            nonce: a random one unless given; tests give that of the RFC.
        """
        self.mechanism = mechanism.name
        self.complete = False
        self._scram, self._password = mechanism, password
        self._cache = cache or SaltedPasswords()
        self._nonce = nonce or generate_nonce()
        self._bare = f"n={escape_name(username)},r={self._nonce}"
        self._sent_count = 0
        self._server_signature = b""

    def respond(self, challenge: bytes | None) -> bytes:
        """Return the next message, or nothing after the last. Raises: SaslPeerRefused.

        Cost: PBKDF2 at the first answer of a server, up to half a second for the most iterations allowed.
        """
        self._sent_count += 1
        if self._sent_count == 1:
            return f"{GS2_HEADER}{self._bare}".encode()
        try:
            if self._sent_count == 2:
                return self._prove(challenge or b"")
            self._verify(challenge or b"")
        except BadScramMessage as exc:
            raise SaslPeerRefused(f"{self.mechanism}: {exc}") from None
        return b""

    def _prove(self, message: bytes) -> bytes:
        """Return client-final-message. The proof is over all messages so far (RFC 5802, section 3)."""
        first = parse_server_first(message)
        self._check_server_first(first)
        unsigned = f"c={encode_base64(GS2_HEADER.encode())},r={first.nonce}"
        auth_message = f"{self._bare},{message.decode()},{unsigned}".encode()
        scram = self._scram
        salted = self._cache.compute(scram, self._password, first.salt, first.iterations)
        client_key = compute_client_key(scram, salted)
        client_signature = compute_hmac(scram, compute_hash(scram, client_key), auth_message)
        self._server_signature = compute_hmac(scram, compute_server_key(scram, salted), auth_message)
        return f"{unsigned},p={encode_base64(xor_bytes(client_key, client_signature))}".encode()

    def _check_server_first(self, first: ServerFirst) -> None:
        # RFC 5802, section 5.1: "The client MUST verify that the initial part of the nonce used in subsequent
        # messages is the same as the nonce it initially specified."
        if not first.nonce.startswith(self._nonce) or len(first.nonce) == len(self._nonce):
            raise SaslPeerRefused(f"{self.mechanism}: the server's nonce does not extend the client's")
        if not ITERATIONS_MIN <= first.iterations <= CLIENT_ITERATIONS_MAX:
            raise SaslPeerRefused(
                f"{self.mechanism}: the server asks for {first.iterations} iterations, "
                f"{ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are accepted"
            )

    def _verify(self, message: bytes) -> None:
        """Verify server-final-message.

        RFC 5802, section 3: "If the two are different, the client MUST consider the authentication exchange
        to be unsuccessful, and it might have to drop the connection."
        """
        if self.complete or self._sent_count != 3 or not self._server_signature:
            raise BadScramMessage("the server goes on after its last message")
        final = parse_server_final(message)
        if final.error:
            raise SaslPeerRefused(f"{self.mechanism}: the server answered {final.error[:100]!r}")
        if not compare_digest(final.signature, self._server_signature):
            raise SaslPeerRefused(
                f"{self.mechanism}: the server's signature is wrong: it does not know this user's password"
            )
        self.complete = True
