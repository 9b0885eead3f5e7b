"""DescribeClientQuotas, AlterClientQuotas: this broker has no quotas, and says so in Kafka's words.

`kafka-configs.sh --describe --entity-type users` lists quotas before it lists users of SCRAM, and fails where
the first is not served. So quotas are listed: there are none. To remove one succeeds, as in Kafka, whose
answer is the same if it was not there. To set one is refused: it would be stored and never enforced.

Source: KIP-546; ClientQuotasImage.describe, ClientQuotaControlManager, ControllerApis.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.ports import HasAuthorizer
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.cluster.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntity,
    QuotaFilterComponent,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})
MATCH_TYPES: Final[Mapping[int, str]] = {
    0: "MATCH_TYPE_EXACT",
    1: "MATCH_TYPE_DEFAULT",
    2: "MATCH_TYPE_SPECIFIED",
}
_EXACT: Final = 0

Entity = frozenset[tuple[str, str | None]]
"""Names by type; None is the default of a type."""

_NOT_AUTHORIZED: Final = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
_NO_QUOTAS: Final = Reject(
    ErrorCode.UNSUPPORTED_VERSION,
    "this broker has no quotas: nothing was set, and no client is slowed down; limit connections with "
    "max.connections and max.connections.per.ip",
)


def describe(
    broker: HasAuthorizer, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """List no quotas, if the filter is one that Kafka takes."""
    if may_on_cluster(broker, context, Operation.DESCRIBE_CONFIGS):
        refusal = check_filter(request.components)
    else:
        refusal = _NOT_AUTHORIZED
    if refusal is None:
        return DescribeClientQuotasResponse(entries=())
    return DescribeClientQuotasResponse(error_code=refusal.code, error_message=refusal.reason)


async def alter(
    broker: HasAuthorizer, request: AlterClientQuotasRequest, context: RequestContext
) -> SlicedTopicResponse:
    """Answer each entity: removed, or why nothing was set."""
    denial = None if may_on_cluster(broker, context, Operation.ALTER_CONFIGS) else _NOT_AUTHORIZED
    refusals = await _find_refusals(request.entries, denial)

    def make_result(entity: Entity, names: tuple[QuotaEntity, ...]) -> QuotaAlterationResult:
        refusal = refusals[entity]
        if refusal is None:
            return QuotaAlterationResult(entity=names)
        return QuotaAlterationResult(error_code=refusal.code, error_message=refusal.reason, entity=names)

    return SlicedTopicResponse(
        lambda results: AlterClientQuotasResponse(entries=results),
        make_result,
        {entity: entity for entity in refusals},
        lambda _, name: QuotaEntity(entity_type=name[0], entity_name=name[1]),
    )


def check_filter(components: Iterable[QuotaFilterComponent]) -> Reject | None:
    """Return why Kafka takes no such filter; None if it does."""
    types = set[str]()
    for component in components:
        refusal = _check_component(component, types)
        if refusal is not None:
            return refusal
        types.add(component.entity_type)
    if IP in types and len(types) > 1:
        return _refuse(
            "Invalid entity filter component combination. IP filter component should not be used with user "
            "or clientId filter component."
        )
    return None


def _check_component(component: QuotaFilterComponent, types: set[str]) -> Reject | None:
    entity_type, match_type = component.entity_type, component.match_type
    if not entity_type:
        return _refuse("Invalid empty entity type.")
    if entity_type in types:
        return _refuse(f"Entity type {entity_type} cannot appear more than once in the filter.")
    if entity_type not in ENTITY_TYPES:
        return Reject(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
    if match_type not in MATCH_TYPES:
        return _refuse(f"Unknown match type {match_type}")
    if match_type == _EXACT and component.match is None:
        return _refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match_type != _EXACT and component.match is not None:
        return _refuse(f"Request specified {MATCH_TYPES[match_type]}, but also specified a match string.")
    return None


def check_entity(names: Mapping[str, str | None]) -> Reject | None:
    """Return why Kafka has no such entity; None if it may have quotas.

    The name of an `ip` is not resolved, as it is in Kafka: a client could hold the broker up with names.

    Args:
        names: by type; None is the default of the type.
    """
    if not names:
        return _refuse("Invalid empty client quota entity")
    for entity_type, name in names.items():
        if entity_type not in ENTITY_TYPES:
            return _refuse(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            return _refuse(f"Empty {entity_type} not supported")
    if IP in names and len(names) > 1:
        return _refuse(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    return None


async def _find_refusals(
    entries: Iterable[QuotaAlteration], denial: Reject | None
) -> dict[Entity, Reject | None]:
    """Return each entity once, with why its change is refused. Yields to the event loop in a long request.

    Args:
        denial: refuses all of them, whatever they are.
    """
    pacer = LoopYielder()
    refusals: dict[Entity, Reject | None] = {}
    for entry in entries:
        await pacer.count_entry()
        # The last name of a type counts, as in the map that Kafka builds.
        names = {each.entity_type: each.entity_name for each in entry.entity}
        entity = frozenset(names.items())
        if denial is not None:
            refusals[entity] = denial
            continue
        if entity in refusals:
            refusals[entity] = _refuse("Ignoring duplicate entity")
            continue
        refusals[entity] = check_entity(names)
        keys = set[str]()
        for each in entry.ops:
            await pacer.count_entry()
            if each.key in keys:
                refusals[entity] = _refuse(f"Duplicate quota key {each.key}")
                break
            keys.add(each.key)
            if not each.remove:
                refusals[entity] = refusals[entity] or _NO_QUOTAS
    return refusals


def _refuse(why: str) -> Reject:
    return Reject(ErrorCode.INVALID_REQUEST, why)
