"""Users of SCRAM who are in no store, for servers that are tested alone."""

from collections.abc import Callable, Mapping

from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    compute_salted_password,
    derive_credential,
    generate_nonce,
)
from tallystick.security.sasl.scram_decoys import FoundCredential, find_or_invent

Lookup = Callable[[str], ScramCredential | None]


def find_in(
    users: Mapping[str, ScramCredential] | Lookup, mechanism: ScramMechanism
) -> Callable[[str], FoundCredential]:
    """Return what a ScramServer asks for a user's credential."""
    look_up: Lookup = users.get if isinstance(users, Mapping) else users
    return lambda user: find_or_invent(mechanism, user, look_up(user), b"dummy")


def create_credential(
    mechanism: ScramMechanism, password: str, iterations: int = ITERATIONS_MIN, salt: bytes | None = None
) -> ScramCredential:
    """Return a credential for a password, with a random salt unless one is given."""
    salt = generate_nonce().encode() if salt is None else salt
    salted = compute_salted_password(mechanism, password, salt, iterations)
    return derive_credential(mechanism, salted, salt, iterations)
