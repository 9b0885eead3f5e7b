"""Which changes of SCRAM credentials are taken: Kafka's ScramControlManager and ScramImage."""

import pytest
from tests.support.scram_users import create_credential

from tallystick.broker.metadata.scram_credentials import (
    CredentialChange,
    SaltedPassword,
    UserDescriptions,
    derive,
    find_refusals,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.security.sasl.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    compute_salted_password,
)

SHA_256, SHA_512 = SCRAM_SHA_256.number, SCRAM_SHA_512.number
STORED = {("alice", SHA_256): create_credential(SCRAM_SHA_256, "secret", 8192)}


SIZES = {SHA_256: 32, SHA_512: 64}


def upsert(user: str = "bob", mechanism: int = SHA_256, iterations: int = 4096) -> CredentialChange:
    return CredentialChange(
        user, mechanism, SaltedPassword(b"salt", bytes(SIZES.get(mechanism, 32)), iterations)
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsert(), None),
        (upsert("alice", SHA_512), None),
        (upsert(iterations=4096), None),
        (upsert(iterations=16_384), None),
        (upsert(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsert(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsert(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (CredentialChange("alice", SHA_256), None),
        (CredentialChange("alice", SHA_512), ErrorCode.RESOURCE_NOT_FOUND),
        (CredentialChange("bob", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
        (CredentialChange("", SHA_256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("alice", 9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_change_alone(change: CredentialChange, code: ErrorCode | None) -> None:
    """KIP-554: "iterations ... must be between 4096 and 16384"; the texts are Kafka's."""
    refusal = find_refusals(STORED, [change]).get(change.user)
    assert (refusal.code if refusal else None) == code


@pytest.mark.parametrize(
    ("salt", "password"), [(b"salt", b""), (b"salt", bytes(31)), (b"salt", bytes(64)), (b"", bytes(32))]
)
def test_a_password_is_as_long_as_its_hash_and_salted(salt: bytes, password: bytes) -> None:
    """Nobody has proved an empty one, so everybody could be this user."""
    change = CredentialChange("bob", SHA_256, SaltedPassword(salt, password, 4096))
    assert find_refusals(STORED, [change])["bob"].code is ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize(("size", "code"), [(1024, None), (1025, ErrorCode.UNACCEPTABLE_CREDENTIAL)])
def test_a_salt_is_no_longer_than_what_a_stranger_may_be_answered(size: int, code: ErrorCode | None) -> None:
    """The first answer of a login has it, and with 16 MiB of salt a name alone would fetch 22 MB."""
    change = CredentialChange("bob", SHA_256, SaltedPassword(bytes(size), bytes(32), 4096))
    refusal = find_refusals(STORED, [change]).get("bob")
    assert (refusal.code if refusal else None) == code


def test_a_user_twice_in_a_request_is_refused_and_the_others_go_on() -> None:
    """Deleting and setting a user's credentials counts as twice, of two mechanisms too."""
    changes = [CredentialChange("alice", SHA_256), upsert("alice", SHA_512), upsert("bob")]
    refusals = find_refusals(STORED, changes)
    assert set(refusals) == {"alice"}
    assert refusals["alice"].code is ErrorCode.DUPLICATE_RESOURCE


def test_the_keys_are_those_of_the_password() -> None:
    """RFC 5802, section 3: the server keeps StoredKey and ServerKey."""
    salted = compute_salted_password(SCRAM_SHA_512, "pencil", b"salt", 5000)
    change = CredentialChange("bob", SHA_512, SaltedPassword(b"salt", salted, 5000))
    assert derive(change) == create_credential(SCRAM_SHA_512, "pencil", 5000, b"salt")
    assert derive(CredentialChange("bob", SHA_512)) is None


def test_a_description_has_iterations_and_no_keys() -> None:
    stored = {**STORED, ("alice", SHA_512): create_credential(SCRAM_SHA_512, "x")}
    everyone = UserDescriptions(stored, [])
    assert everyone.users == ("alice",)
    assert everyone.describe("alice") == {SHA_256: 8192, SHA_512: 4096}
    named = UserDescriptions(stored, ["bob", "alice", "alice"])
    answers = {user: named.describe(user) for user in named.users}
    codes = {user: each.code for user, each in answers.items() if isinstance(each, Reject)}
    assert codes == {"bob": ErrorCode.RESOURCE_NOT_FOUND, "alice": ErrorCode.DUPLICATE_RESOURCE}


def test_what_is_logged_has_no_key() -> None:
    shown = repr([upsert(), STORED])
    assert "salted'" not in shown
    assert "hidden" in shown.lower()
