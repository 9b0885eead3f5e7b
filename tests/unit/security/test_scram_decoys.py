"""What a login of an unknown user is answered with tells nothing."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scram_users import create_credential

from tallystick.security.sasl.mechanism import SaslAuthenticationFailed
from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramCredential,
    ScramMechanism,
    generate_nonce,
)
from tallystick.security.sasl.scram_decoys import (
    FoundCredential,
    find_or_invent,
    invent_credential,
    list_forms,
)
from tallystick.security.sasl.scram_server import ScramServer

SECRET = b"secret of the store"
NAMES = [f"user{number}" for number in range(400)]
BOTH = pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512], ids=lambda each: each.name)


def salted_by_java() -> bytes:
    """ScramFormatter.secureRandomString."""
    number, text = random.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    return text.encode()


def stored(iterations: int, salt: bytes) -> ScramCredential:
    """Return a credential without its keys, which no decoy is made from."""
    return ScramCredential(salt, b"", b"", iterations)


def invent(user: str, *known: ScramCredential, secret: bytes = SECRET) -> ScramCredential:
    return invent_credential(SCRAM_SHA_256, user, secret, list_forms(known))


def test_an_invented_credential_is_the_same_each_time_and_another_for_each_name_and_secret() -> None:
    known = stored(8192, b"salt")
    assert invent("nobody", known) == invent("nobody", known)
    assert invent("nobody", known).salt != invent("somebody", known).salt
    assert invent("nobody", known).salt != invent("nobody", known, secret=b"other").salt
    other = invent_credential(SCRAM_SHA_512, "nobody", SECRET, list_forms([known]))
    assert other.salt != invent("nobody", known).salt
    assert (len(other.stored_key), len(invent("nobody").stored_key)) == (64, 32)


def test_unknown_users_have_the_iterations_that_known_ones_have() -> None:
    """All of them: a user with a rare count is not told from those who do not exist."""
    known = [stored(count, generate_nonce().encode()) for count in (4096, 8192, 16384)]
    counts = Counter(invent(name, *known).iterations for name in NAMES)
    assert set(counts) == {4096, 8192, 16384}
    assert min(counts.values()) > len(NAMES) / 5
    assert {invent(name).iterations for name in NAMES} == {ITERATIONS_MIN}


@pytest.mark.parametrize(
    ("salt", "look"),
    [
        (salted_by_java(), rb"[0-9a-z]{20,26}"),
        (generate_nonce().encode(), rb"[A-Za-z0-9_-]{24}"),
        (bytes(range(16)), rb"(?s:.{16})"),
        (b"", rb""),
        (b"\xff" * 500, rb"(?s:.{500})"),
    ],
    ids=["java", "own", "16", "none", "500"],
)
def test_an_invented_salt_looks_like_those_that_are_stored(salt: bytes, look: bytes) -> None:
    salts = [invent(name, stored(4096, salt)).salt for name in NAMES]
    assert all(re.fullmatch(look, each) for each in salts)
    assert len(set(salts)) == len(NAMES) or not salt


def test_java_salts_have_javas_lengths_and_letters() -> None:
    """Its 26th letter can be a 1 alone, as 130 bits have room for no more."""
    for salts in (
        [invent(name, stored(4096, salted_by_java())).salt for name in NAMES],
        [salted_by_java() for _ in NAMES],
    ):
        assert {salt[:1] for salt in salts if len(salt) == 26} == {b"1"}
        assert 0.2 < sum(len(salt) == 26 for salt in salts) / len(NAMES) < 0.6


@given(st.sets(st.integers(4096, 16384), min_size=1, max_size=5), st.integers(4096, 16384))
def test_another_form_changes_a_name_to_it_or_not_at_all(counts: set[int], new: int) -> None:
    before = list_forms(stored(count, b"salt") for count in sorted(counts))
    after = list_forms(stored(count, b"salt") for count in sorted(counts | {new}))
    for name in NAMES[:20]:
        first = invent_credential(SCRAM_SHA_256, name, SECRET, before).iterations
        assert invent_credential(SCRAM_SHA_256, name, SECRET, after).iterations in (first, new)


@BOTH
def test_a_known_user_costs_the_same_work_and_gets_his_own(mechanism: ScramMechanism) -> None:
    alice = create_credential(mechanism, "secret")
    found = find_or_invent(mechanism, "alice", alice, SECRET)
    assert found == FoundCredential(alice, is_known=True)
    unknown = find_or_invent(mechanism, "bob", None, SECRET)
    assert unknown == FoundCredential(invent_credential(mechanism, "bob", SECRET), is_known=False)


def test_a_credential_is_invented_for_a_known_user_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to the first answer does not tell which users exist."""
    invented = []

    def count(mechanism: ScramMechanism, user: str, *rest: object) -> ScramCredential:
        invented.append(user)
        return stored(4096, b"salt")

    monkeypatch.setattr("tallystick.security.sasl.scram_decoys.invent_credential", count)
    for known in (None, stored(8192, b"salt")):
        find_or_invent(SCRAM_SHA_256, "alice", known, SECRET)
    assert invented == ["alice", "alice"]


def test_an_unknown_user_is_answered_with_the_iterations_of_others_and_stays_out() -> None:
    forms = list_forms([stored(8192, b"salt")])
    server = ScramServer(
        SCRAM_SHA_256, lambda user: find_or_invent(SCRAM_SHA_256, user, None, SECRET, forms), nonce="server"
    )
    assert server.respond(b"n,,n=ghost,r=abc").endswith(b",i=8192")
    with pytest.raises(SaslAuthenticationFailed):
        server.respond(b"c=biws,r=abcserver,p=" + b"A" * 43 + b"=")
