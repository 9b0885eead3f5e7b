"""Users that log in with SCRAM: who they are, and their credentials (KIP-554).

A password is salted here and does not leave the program. A user's name must not be given twice in one call.
"""

from collections.abc import Iterable, Sequence

from tallystick.admin.admin_call import AdminCall, Answers
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.protocol.messages.security import scram_credentials
from tallystick.security.sasl.scram import (
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramMechanism,
    compute_salted_password,
    generate_nonce,
)

_NAMES = {each.number: each.name for each in SCRAM_MECHANISMS.values()}


class ScramCredentialInfo(Value):
    """A credential as it is described: `SCRAM-SHA-256` or `SCRAM-SHA-512`, and its iterations."""

    mechanism: str
    iterations: int = ITERATIONS_MIN


class UserScramCredentialUpsertion(Value):
    """A user's new credential for one mechanism; the salt is random unless given."""

    user: str
    credential: ScramCredentialInfo
    password: Secret
    salt: bytes | None = None


class UserScramCredentialDeletion(Value):
    """The removal of a user's credential for one mechanism."""

    user: str
    mechanism: str


UserScramCredentialAlteration = UserScramCredentialUpsertion | UserScramCredentialDeletion


async def describe(call: AdminCall, users: Iterable[str]) -> Answers[str, tuple[ScramCredentialInfo, ...]]:
    names = tuple(dict.fromkeys(users))
    request = scram_credentials.DescribeUserScramCredentialsRequest(
        users=tuple(scram_credentials.UserName(name=name) for name in names) or None
    )

    async def attempt() -> scram_credentials.DescribeUserScramCredentialsResponse:
        answer = await call.cluster.send_to_any(
            request, scram_credentials.DescribeUserScramCredentialsResponse
        )
        if answer.error_code:
            raise build_broker_error(
                "DescribeUserScramCredentials", "", answer.error_code, answer.error_message
            )
        return answer

    api = "DescribeUserScramCredentials"
    answer = await call.cluster.run_with_retries(api, "", attempt, call.deadline)
    return Answers(
        found={
            each.user: tuple(
                ScramCredentialInfo(_NAMES.get(info.mechanism, f"UNKNOWN({info.mechanism})"), info.iterations)
                for info in each.credential_infos
            )
            for each in answer.results
            if not each.error_code
        },
        failures={
            each.user: build_broker_error(api, each.user, each.error_code, each.error_message)
            for each in answer.results
            if each.error_code
        },
    )


async def alter(call: AdminCall, alterations: Iterable[UserScramCredentialAlteration]) -> Answers[str, None]:
    items = list(alterations)
    mechanisms = {_get_name(each): _find_mechanism(_get_name(each)) for each in items}
    # Salted once: a request that is repeated has the same salt and needs no more time.
    upsertions = [
        (each, _salt(each, mechanisms[each.credential.mechanism]))
        for each in items
        if isinstance(each, UserScramCredentialUpsertion)
    ]
    deletions = [
        scram_credentials.ScramCredentialDeletion(name=each.user, mechanism=mechanisms[each.mechanism].number)
        for each in items
        if isinstance(each, UserScramCredentialDeletion)
    ]

    async def ask(some: Sequence[str]) -> dict[str, ClientError | None]:
        request = scram_credentials.AlterUserScramCredentialsRequest(
            deletions=tuple(each for each in deletions if each.name in some),
            upsertions=tuple(upsertion for each, upsertion in upsertions if each.user in some),
        )
        controller = await call.find_controller()
        answer = await call.cluster.send(
            controller, request, scram_credentials.AlterUserScramCredentialsResponse
        )
        return {
            each.user: build_broker_error(
                "AlterUserScramCredentials", each.user, each.error_code, each.error_message
            )
            if each.error_code
            else None
            for each in answer.results
        }

    users = tuple(dict.fromkeys(each.user for each in items))
    return await call.send_with_retries("AlterUserScramCredentials", users, ask)


def _get_name(alteration: UserScramCredentialAlteration) -> str:
    if isinstance(alteration, UserScramCredentialDeletion):
        return alteration.mechanism
    return alteration.credential.mechanism


def _find_mechanism(name: str) -> ScramMechanism:
    if name not in SCRAM_MECHANISMS:
        raise BadConfig(f"mechanism {name!r}: is neither {' nor '.join(SCRAM_MECHANISMS)}")
    return SCRAM_MECHANISMS[name]


def _salt(
    each: UserScramCredentialUpsertion, mechanism: ScramMechanism
) -> scram_credentials.ScramCredentialUpsertion:
    salt = generate_nonce().encode() if each.salt is None else each.salt
    iterations = each.credential.iterations
    return scram_credentials.ScramCredentialUpsertion(
        name=each.user,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=salt,
        salted_password=compute_salted_password(mechanism, each.password.reveal(), salt, iterations),
    )
