"""Hostile changes of the users of SCRAM, against a model of which changes Kafka takes."""

import random
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.support.hostile import mutate
from tests.support.hostile_logins import ANSWER_BYTES_MAX, TEXT_LENGTH_MAX, require

from tallystick.broker.authorizer.authorizer import ALLOW_ALL
from tallystick.broker.handlers.security import scram_credentials
from tallystick.broker.metadata.scram_controller import ScramController
from tallystick.broker.metadata.store import IN_MEMORY, MetadataStore
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode as E
from tallystick.protocol import DecodeError, decode, encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security.scram_credentials import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tallystick.security.sasl.mechanism import SaslAuthenticationFailed
from tallystick.security.sasl.scram import (
    SALT_BYTES_MAX,
    SCRAM_MECHANISMS,
    ScramMechanism,
    compute_client_key,
    compute_hash,
    compute_hmac,
    xor_bytes,
)
from tallystick.security.sasl.scram_server import ScramServer

T = TypeVar("T")

MECHANISMS = {each.number: each for each in SCRAM_MECHANISMS.values()}
NAMES = ("alice", "alice", "bob", "", "\0", "a\0b", "a,=b", "zoë", "n" * 32_767, "ghost")
ITERATIONS = (4096, 8192, 16_384, 4095, 16_385, 0, -1, 2**31 - 1, -(2**31))
SALTS = (b"", b"salt", b"\0", b"0123456789abcdefghijklmno", b"\xff" * 500, bytes(SALT_BYTES_MAX))
LONG_SALTS = (bytes(SALT_BYTES_MAX + 1), b"x" * 1_000_000)
SECRETS = (b"salted", b"", bytes(32), b"\xff" * 32, bytes(64), b"\x01" * 64, b"\xff" * 10_000)

Credential = tuple[str, int]


class _Worker:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


class _Desk:
    """The parts of a broker that users of SCRAM need."""

    authorizer = ALLOW_ALL

    def __init__(self) -> None:
        self.store = MetadataStore(IN_MEMORY, "c")
        worker: Any = _Worker()
        self.scram_controller = ScramController(self.store, worker, self._fail)

    def _fail(self, cause: Exception) -> None:
        raise cause


def attack_users(rng: random.Random) -> bool:
    """Send a few changes, and log in; return whether a change was taken."""
    desk: Any = _Desk()
    model: dict[Credential, ScramCredentialUpsertion] = {}
    is_taken = False
    for _ in range(rng.randrange(1, 4)):
        request = _make_request(rng)
        if request is None:
            continue
        context = RequestContext(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 1, "c", "h", 1)
        answer: Any = _finish(scram_credentials.alter(desk, request, context)).build()
        encode(answer, 0)
        codes = {each.user: each.error_code for each in answer.results}
        expected = apply_to_model(model, request)
        require(codes == expected, "LGN-1", f"answered {codes}, expected {expected}")
        for each in answer.results:
            require(len(each.error_message or "") <= TEXT_LENGTH_MAX, "LGN-4", "a long reason")
        is_taken |= E.NONE in codes.values()
    _check_store(desk, model)
    _check_description(desk, model)
    for user, number in ((rng.choice(NAMES), rng.choice((1, 2))), *model):
        log_in(desk.scram_controller, user, MECHANISMS[number], model.get((user, number)), rng)
    desk.store.close()
    return is_taken


def apply_to_model(
    model: dict[Credential, ScramCredentialUpsertion], request: AlterUserScramCredentialsRequest
) -> dict[str, int]:
    """Return the code of each user, and make the changes of those without one.

    Source: ScramControlManager; the lengths of a salt and a salted password are rules of ours.
    """
    changes: tuple[ScramCredentialDeletion | ScramCredentialUpsertion, ...] = (
        *request.deletions,
        *request.upsertions,
    )
    times = Counter(each.name for each in changes)
    codes: dict[str, int] = {}
    for each in changes:
        if times[each.name] > 1:
            codes[each.name] = E.DUPLICATE_RESOURCE
        elif not each.name:
            codes[each.name] = E.UNACCEPTABLE_CREDENTIAL
        elif each.mechanism not in MECHANISMS:
            codes[each.name] = E.UNSUPPORTED_SASL_MECHANISM
        elif isinstance(each, ScramCredentialDeletion):
            known = model.pop((each.name, each.mechanism), None)
            codes[each.name] = E.NONE if known else E.RESOURCE_NOT_FOUND
        elif (
            not 4096 <= each.iterations <= 16_384
            or not 0 < len(each.salt) <= SALT_BYTES_MAX
            or len(each.salted_password) != MECHANISMS[each.mechanism].hash_bytes
        ):
            codes[each.name] = E.UNACCEPTABLE_CREDENTIAL
        else:
            codes[each.name] = E.NONE
            model[each.name, each.mechanism] = each
    return codes


def log_in(
    controller: ScramController,
    user: str,
    mechanism: ScramMechanism,
    made: ScramCredentialUpsertion | None,
    rng: random.Random,
) -> None:
    """Log in with the salted password that was stored, or with any; only the first may succeed."""
    server = ScramServer(mechanism, partial(controller.find, mechanism), nonce="server")
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=client"
    try:
        first = server.respond(f"n,,{bare}".encode())
    except SaslAuthenticationFailed:
        require(not user or "\0" in user or len(user) > 8_000, "LGN-1", f"{user[:40]!r} cannot log in")
        return
    require(len(first) <= ANSWER_BYTES_MAX, "LGN-4", f"a first answer of {len(first)} bytes")
    again = ScramServer(mechanism, partial(controller.find, mechanism), nonce="server")
    require(again.respond(f"n,,{bare}".encode()) == first, "LGN-4", "two attempts are answered differently")
    salted = bytes(made.salted_password) if made else rng.choice(SECRETS)
    unsigned = "c=biws,r=clientserver"
    client_key = compute_client_key(mechanism, salted)
    auth_message = f"{bare},{first.decode()},{unsigned}".encode()
    proof = xor_bytes(client_key, compute_hmac(mechanism, compute_hash(mechanism, client_key), auth_message))
    try:
        server.respond(f"{unsigned},p={b64encode(proof).decode()}".encode())
    except SaslAuthenticationFailed:
        require(made is None, "LGN-1", f"{user!r} cannot log in with its password")
    require(server.complete == (made is not None), "LGN-2", f"{user!r} logged in without a credential")


def _make_request(rng: random.Random) -> AlterUserScramCredentialsRequest | None:
    salts = (*SALTS, *SALTS, *LONG_SALTS) if rng.random() < 0.1 else SALTS
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(
            ScramCredentialDeletion(name=rng.choice(NAMES), mechanism=rng.choice((1, 2, 0, -1, 127)))
            for _ in range(rng.choice((0, 0, 1, 2)))
        ),
        upsertions=tuple(
            ScramCredentialUpsertion(
                name=rng.choice(NAMES),
                mechanism=rng.choice((1, 1, 2, 2, 3)),
                iterations=rng.choice(ITERATIONS if rng.random() < 0.5 else ITERATIONS[:3]),
                salt=rng.choice(salts),
                salted_password=rng.choice(SECRETS),
            )
            for _ in range(rng.choice((1, 1, 2, 5)))
        ),
    )
    body = encode(request, 0)
    if rng.random() < 0.2:
        body = mutate(body, rng)
    try:
        return decode(AlterUserScramCredentialsRequest, body, 0)
    except DecodeError:
        return None


def _check_store(desk: Any, model: dict[Credential, ScramCredentialUpsertion]) -> None:
    """What is in force is in the store, and is what was sent [MET-1]."""
    in_force = dict(desk.scram_controller.credentials)
    require(in_force == desk.store.load_scram_credentials(), "LGN-2", "the store has other users")
    shown = {key: (bytes(each.salt), each.iterations) for key, each in in_force.items()}
    sent = {key: (bytes(each.salt), each.iterations) for key, each in model.items()}
    require(shown == sent, "LGN-2", f"{shown} are in force, and {sent} were taken")


def _check_description(desk: Any, model: dict[Credential, ScramCredentialUpsertion]) -> None:
    context = RequestContext(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 1, "c", "h", 1)
    request = DescribeUserScramCredentialsRequest(users=None)
    answer: Any = _finish(scram_credentials.describe(desk, request, context)).build()
    described = decode(type(answer), encode(answer, 0), 0)
    found = {
        (each.user, info.mechanism): info.iterations
        for each in described.results
        for info in each.credential_infos
    }
    expected = {key: each.iterations for key, each in model.items()}
    require(found == expected, "LGN-2", f"{found} are described, and {expected} are stored")


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a change waited")
