"""SCRAM credentials as values: which changes of a request are taken, and what a description shows.

A user has a credential for each mechanism. A request names each user once: a second change of the same user
refuses both, and the others go on.

Source: KIP-554; Kafka ScramControlManager, ScramImage.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.secret import HIDDEN
from tallystick.kernel.value import Value
from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SCRAM_MECHANISMS,
    SERVER_ITERATIONS_MAX,
    ScramCredential,
    ScramMechanism,
    derive_credential,
)

MECHANISMS_BY_NUMBER: Mapping[int, ScramMechanism] = {each.number: each for each in SCRAM_MECHANISMS.values()}

CredentialKey = tuple[str, int]
"""A user, and the number of a mechanism."""
Credentials = Mapping[CredentialKey, ScramCredential]


class SaltedPassword(Value):
    """The salted form of a password that a client sends. The broker derives its keys from it and drops it."""

    salt: bytes
    salted_password: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"SaltedPassword({HIDDEN}, iterations={self.iterations})"


class CredentialChange(Value):
    """A change of one user's credential; without a password its removal."""

    user: str
    mechanism_number: int
    password: SaltedPassword | None = None

    @property
    def key(self) -> CredentialKey:
        return self.user, self.mechanism_number


def find_refusals(credentials: Credentials, changes: Sequence[CredentialChange]) -> dict[str, Reject]:
    """Return the users whose change is refused, with the reason."""
    counts = Counter(change.user for change in changes)
    refusals = {}
    for change in changes:
        refusal = (
            Reject(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
            if counts[change.user] > 1
            else _check_change(credentials, change)
        )
        if refusal is not None:
            refusals[change.user] = refusal
    return refusals


def _check_change(credentials: Credentials, change: CredentialChange) -> Reject | None:
    password = change.password
    if not change.user:
        return Reject(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism_number not in MECHANISMS_BY_NUMBER:
        return Reject(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if password is None:
        if change.key in credentials:
            return None
        why = "Attempt to delete a user credential that does not exist"
        return Reject(ErrorCode.RESOURCE_NOT_FOUND, why)
    if password.iterations < ITERATIONS_MIN:
        return Reject(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if password.iterations > SERVER_ITERATIONS_MAX:
        return Reject(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    length = MECHANISMS_BY_NUMBER[change.mechanism_number].hash_bytes
    if len(password.salted_password) != length:
        return Reject(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The salted password has {len(password.salted_password)} bytes, and its hash has {length}",
        )
    if not password.salt:
        return Reject(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt must not be empty")
    if len(password.salt) > SALT_BYTES_MAX:
        return Reject(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The salt has {len(password.salt)} bytes, and this broker stores up to {SALT_BYTES_MAX}",
        )
    return None


def derive(change: CredentialChange) -> ScramCredential | None:
    """Return the credential that a change leaves, None after a removal."""
    password = change.password
    if password is None:
        return None
    mechanism = MECHANISMS_BY_NUMBER[change.mechanism_number]
    return derive_credential(mechanism, password.salted_password, password.salt, password.iterations)


class UserDescriptions:
    """Describes users one at a time, as a request may name very many. Shows iterations and no keys."""

    def __init__(self, credentials: Credentials, users: Iterable[str]) -> None:
        """Describe `users`, each of them once; all users if none is named."""
        self._by_user: dict[str, dict[int, int]] = {}
        for (user, mechanism_number), credential in credentials.items():
            self._by_user.setdefault(user, {})[mechanism_number] = credential.iterations
        self._counts = Counter(users) or Counter(self._by_user.keys())

    @property
    def users(self) -> Sequence[str]:
        """The users to describe, each once."""
        return tuple(self._counts)

    def describe(self, user: str) -> dict[int, int] | Reject:
        """Return the iterations of each mechanism, by the mechanism's number."""
        if self._counts[user] > 1:
            return Reject(
                ErrorCode.DUPLICATE_RESOURCE,
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
            )
        return self._by_user.get(user) or Reject(
            ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {user}"
        )
