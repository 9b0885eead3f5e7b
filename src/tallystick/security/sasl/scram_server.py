"""The server side of SCRAM.

A user who is not known goes through a whole login with an invented credential and fails at its end, like one
with a wrong password: the first answer must not tell which names exist. (Kafka fails immediately, and so
tells.)
"""

from collections.abc import Callable
from hmac import compare_digest

from tallystick.kernel.check import require
from tallystick.security.sasl.mechanism import (
    SaslAuthenticationFailed,
    describe_bad_credentials,
)
from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    BadScramMessage,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    compute_hash,
    compute_hmac,
    encode_base64,
    generate_nonce,
    parse_client_final,
    parse_client_first,
    xor_bytes,
)
from tallystick.security.sasl.scram_decoys import FoundCredential


class ScramServer:
    """The server side of one SCRAM login: two messages."""

    session_expires_ms = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        find_credential: Callable[[str], FoundCredential],
        nonce: str | None = None,
    ) -> None:
        """Create a server that has heard nothing.

        Args:
            find_credential: returns a user's credential for this mechanism, or an invented one.
            nonce: the server's part, random unless given.
        """
        self._mechanism, self._find_credential = mechanism, find_credential
        self._own_nonce = nonce or generate_nonce()
        self._first: ClientFirst | None = None
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._server_first = ""
        self._is_spent = False
        self.principal: str | None = None

    @property
    def complete(self) -> bool:
        return self.principal is not None

    def respond(self, token: bytes) -> bytes:
        """Return server-first-message or server-final-message."""
        if self._is_spent:
            raise SaslAuthenticationFailed(
                f"Authentication failed: unexpected message, {self._mechanism.name} has already finished"
            )
        try:
            return self._open(token) if self._first is None else self._finish(self._first, token)
        except BadScramMessage as exc:
            self._is_spent = True
            raise SaslAuthenticationFailed(f"Authentication failed: {self._mechanism.name}: {exc}") from None
        except SaslAuthenticationFailed:
            self._is_spent = True
            raise

    def _open(self, token: bytes) -> bytes:
        first = parse_client_first(token)
        if first.authorization_id not in ("", first.username):
            raise SaslAuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if ("tokenauth", "true") in first.extensions:
            raise SaslAuthenticationFailed("Authentication failed: this broker has no delegation tokens")
        lookup = self._find_credential(first.username)
        credential, self._is_known = lookup.credential, lookup.is_known
        # Kafka reads its own credentials with the same suspicion.
        if credential.iterations < ITERATIONS_MIN:
            raise SaslAuthenticationFailed(
                f"Authentication failed: Iterations {credential.iterations} is less than the minimum "
                f"{ITERATIONS_MIN} for {self._mechanism.name}"
            )
        self._credential, self._first = credential, first
        self._server_first = (
            f"r={first.nonce}{self._own_nonce},s={encode_base64(credential.salt)},i={credential.iterations}"
        )
        return self._server_first.encode()

    def _finish(self, first: ClientFirst, token: bytes) -> bytes:
        self._is_spent = True
        final = parse_client_final(token)
        credential, mechanism = require(self._credential, "set with the first message"), self._mechanism
        # RFC 5802, section 5.1: "The server MUST verify that the nonce sent by the client in the second
        # message is the same as the one sent by the server in its first message." Kafka did not:
        # CVE-2024-56128.
        nonce = f"{first.nonce}{self._own_nonce}"
        is_right = compare_digest(final.nonce.encode(), nonce.encode())
        # Section 5.1, on `c=`: it is the GS2 header again, so that nothing in it can be exchanged on the way.
        is_right &= compare_digest(final.channel_binding, first.gs2_header.encode())
        auth_message = f"{first.bare},{self._server_first},{final.unsigned}".encode()
        signature = compute_hmac(mechanism, credential.stored_key, auth_message)
        if len(final.proof) != len(signature):
            raise BadScramMessage("the proof does not have the length of the hash")
        client_key = xor_bytes(final.proof, signature)
        is_right &= compare_digest(compute_hash(mechanism, client_key), credential.stored_key)
        if not is_right or not self._is_known:
            raise SaslAuthenticationFailed(describe_bad_credentials(mechanism.name))
        self.principal = first.username
        return f"v={encode_base64(compute_hmac(mechanism, credential.server_key, auth_message))}".encode()
