"""Credentials for users who do not exist, so that a login does not tell which users do.

The first answer of SCRAM shows a user's salt and iterations. An unknown user is therefore answered with a
salt and iterations that a user could have: of a form that stored credentials have, the same at every attempt,
on every listener and after a restart. They are computed from the name and a secret that is stored with the
users.

The form is the one with the highest score for a name (rendezvous hashing), so that a change of other users
seldom changes what a name is answered with.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import shake_256
from hmac import digest as hmac_digest
from typing import Final

from tallystick.kernel.value import Value
from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    encode_nonce,
)

_KEYED_HASH: Final = "sha256"
# Java's ScramFormatter.secureRandomString, which kafka-configs salts with: 130 random bits in base 36.
_JAVA_SALT: Final = re.compile(rb"[0-9a-z]{20,26}")
_JAVA_SALT_BITS: Final = 130
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
# `generate_nonce`, which our administrators' clients salt with.
_OWN_SALT: Final = re.compile(rb"[A-Za-z0-9_-]{24}")
_OWN_SALT_BYTES: Final = 18
_JAVA, _OWN, _BYTES = "java", "own", "bytes"


class CredentialForm(Value):
    """Form of a credential that a client sees before it proves a password: iterations and kind of salt."""

    iterations: int
    salt_form: str
    salt_bytes: int = 0  # of a salt that is neither Java's nor ours


class FoundCredential(Value):
    """Credential for checking a login; an unknown user's is a decoy that no password matches."""

    credential: ScramCredential
    is_known: bool


DEFAULT_FORM: Final = CredentialForm(ITERATIONS_MIN, _OWN)


def list_forms(credentials: Iterable[ScramCredential]) -> tuple[CredentialForm, ...]:
    """Return the forms of credentials of one mechanism, each once."""
    return tuple(dict.fromkeys(_read_form(each) for each in credentials))


def find_or_invent(
    mechanism: ScramMechanism,
    user: str,
    known: ScramCredential | None,
    secret: bytes,
    forms: Sequence[CredentialForm] = (),
) -> FoundCredential:
    """Return a user's credential, or an invented one.

    It is invented in either case: the time must not tell, either.

    Args:
        known: the user's stored credential, None for an unknown user.
        secret: random bytes, known to the broker alone.
        forms: of the stored credentials of this mechanism.
    """
    invented = invent_credential(mechanism, user, secret, forms)
    return FoundCredential(known or invented, known is not None)


def invent_credential(
    mechanism: ScramMechanism, user: str, secret: bytes, forms: Sequence[CredentialForm] = ()
) -> ScramCredential:
    """Return a credential that no password fits, always the same one for a name. Cost: linear in forms."""
    name = f"{mechanism.name}\0{user}".encode()

    def score(form: CredentialForm) -> bytes:
        form_text = f"{form.iterations},{form.salt_form},{form.salt_bytes}\0".encode()
        return hmac_digest(secret, b"form\0" + form_text + name, _KEYED_HASH)

    form = max(forms, key=score, default=DEFAULT_FORM)
    stream = hmac_digest(secret, b"salt\0" + name, _KEYED_HASH)
    key = hmac_digest(secret, b"key\0" + name, mechanism.hash_name)
    return ScramCredential(_make_salt(form, stream), key, key, form.iterations)


def _read_form(credential: ScramCredential) -> CredentialForm:
    salt, iterations = credential.salt, credential.iterations
    if _JAVA_SALT.fullmatch(salt):
        return CredentialForm(iterations, _JAVA)
    if _OWN_SALT.fullmatch(salt):
        return CredentialForm(iterations, _OWN)
    return CredentialForm(iterations, _BYTES, len(salt))


def _make_salt(form: CredentialForm, seed: bytes) -> bytes:
    if form.salt_form == _BYTES:
        return shake_256(seed).digest(form.salt_bytes)
    if form.salt_form == _OWN:
        return encode_nonce(seed[:_OWN_SALT_BYTES]).encode()
    number, digits = int.from_bytes(seed) & ((1 << _JAVA_SALT_BITS) - 1), bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
