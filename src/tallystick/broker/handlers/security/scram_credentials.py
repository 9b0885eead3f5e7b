"""DescribeUserScramCredentials, AlterUserScramCredentials: users that log in with SCRAM.

No password comes here: the client salts it, and no salt or key leaves.

Source: KIP-554; KafkaApis, ControllerApis.
"""

from collections.abc import Iterator
from typing import Final

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.handlers.ports import ScramCredentialsPort
from tallystick.broker.handlers.sliced_response import SlicedListResponse, collect_in_slices
from tallystick.broker.metadata.scram_credentials import (
    CredentialChange,
    SaltedPassword,
    UserDescriptions,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.security.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_NOT_AUTHORIZED: Final = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


async def describe(
    broker: ScramCredentialsPort, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> SlicedListResponse:
    """List the mechanisms and iterations of users; of all users if none is named."""
    if not broker.authorizer.allows(context, Operation.DESCRIBE, CLUSTER_RESOURCE):
        return SlicedListResponse(
            lambda results: DescribeUserScramCredentialsResponse(
                error_code=_NOT_AUTHORIZED.code, error_message=_NOT_AUTHORIZED.reason, results=results
            ),
            request.users or (),
            # As in Kafka, which names none of the users here.
            lambda _: _to_description("", _NOT_AUTHORIZED),
        )
    names = await collect_in_slices(each.name for each in request.users or ())
    descriptions = UserDescriptions(broker.scram_controller.credentials, names)
    return SlicedListResponse(
        lambda results: DescribeUserScramCredentialsResponse(results=results),
        descriptions.users,
        lambda user: _to_description(user, descriptions.describe(user)),
    )


async def alter(
    broker: ScramCredentialsPort, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> SlicedListResponse:
    """Make the valid changes of the request in one step; refuse the others, each with its reason."""
    changes = await collect_in_slices(_iter_changes(request))
    users = tuple(dict.fromkeys(change.user for change in changes))
    if not broker.authorizer.allows(context, Operation.ALTER, CLUSTER_RESOURCE):
        refusals = dict.fromkeys(users, _NOT_AUTHORIZED)
    else:
        refusals = await broker.scram_controller.alter(changes)
    return SlicedListResponse(
        lambda results: AlterUserScramCredentialsResponse(results=results),
        users,
        lambda user: _to_alteration(user, refusals.get(user)),
    )


def _iter_changes(request: AlterUserScramCredentialsRequest) -> Iterator[CredentialChange]:
    for deletion in request.deletions:
        yield CredentialChange(deletion.name, deletion.mechanism)
    for each in request.upsertions:
        password = SaltedPassword(bytes(each.salt), bytes(each.salted_password), each.iterations)
        yield CredentialChange(each.name, each.mechanism, password)


def _to_description(user: str, credentials: dict[int, int] | Reject) -> DescribeUserScramCredentialsResult:
    if isinstance(credentials, Reject):
        return DescribeUserScramCredentialsResult(
            user=user, error_code=credentials.code, error_message=credentials.reason
        )
    infos = tuple(CredentialInfo(mechanism=number, iterations=count) for number, count in credentials.items())
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)


def _to_alteration(user: str, refusal: Reject | None) -> AlterUserScramCredentialsResult:
    if refusal is None:
        return AlterUserScramCredentialsResult(user=user)
    return AlterUserScramCredentialsResult(user=user, error_code=refusal.code, error_message=refusal.reason)
