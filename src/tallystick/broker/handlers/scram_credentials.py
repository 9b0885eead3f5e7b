"""DescribeUserScramCredentials, AlterUserScramCredentials: users that log in with SCRAM.

No password comes here: the client salts it, and no salt or key leaves.

Source: KIP-554; KafkaApis, ControllerApis.
"""

from typing import Final

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.handlers.ports import ScramCredentialsPort
from tallystick.broker.metadata.scram_credentials import CredentialChange, SaltedPassword, describe_users
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from tallystick.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_NOT_AUTHORIZED: Final = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def describe(
    broker: ScramCredentialsPort, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """List the mechanisms and iterations of users; of all users if none is named."""
    users = [each.name for each in request.users or ()]
    if not broker.authorizer.allows(context, Operation.DESCRIBE, CLUSTER_RESOURCE):
        return DescribeUserScramCredentialsResponse(
            error_code=_NOT_AUTHORIZED.code,
            error_message=_NOT_AUTHORIZED.reason,
            # As in Kafka, which names none of the users here.
            results=tuple(_to_description("", _NOT_AUTHORIZED) for _ in users),
        )
    found = describe_users(broker.scram_controller.credentials, users)
    return DescribeUserScramCredentialsResponse(
        results=tuple(_to_description(user, each) for user, each in found.items())
    )


async def alter(
    broker: ScramCredentialsPort, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Make the valid changes of the request in one step; refuse the others, each with its reason."""
    changes = [
        *(CredentialChange(each.name, each.mechanism) for each in request.deletions),
        *(
            CredentialChange(
                each.name,
                each.mechanism,
                SaltedPassword(bytes(each.salt), bytes(each.salted_password), each.iterations),
            )
            for each in request.upsertions
        ),
    ]
    users = dict.fromkeys(change.user for change in changes)
    if not broker.authorizer.allows(context, Operation.ALTER, CLUSTER_RESOURCE):
        return AlterUserScramCredentialsResponse(
            results=tuple(_to_alteration(user, _NOT_AUTHORIZED) for user in users)
        )
    refusals = await broker.scram_controller.alter(changes)
    return AlterUserScramCredentialsResponse(
        results=tuple(_to_alteration(user, refusals.get(user)) for user in users)
    )


def _to_description(user: str, found: dict[int, int] | Reject) -> DescribeUserScramCredentialsResult:
    if isinstance(found, Reject):
        return DescribeUserScramCredentialsResult(
            user=user, error_code=found.code, error_message=found.reason
        )
    infos = tuple(CredentialInfo(mechanism=number, iterations=count) for number, count in found.items())
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def _to_alteration(user: str, refusal: Reject | None) -> AlterUserScramCredentialsResult:
    if refusal is None:
        return AlterUserScramCredentialsResult(user=user)
    return AlterUserScramCredentialsResult(user=user, error_code=refusal.code, error_message=refusal.reason)
