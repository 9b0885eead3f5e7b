"""AlterClientQuotas (49): set or remove quotas of users, client ids and addresses."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, FLOAT64, INT16, INT32, STRING, array, message, struct, wire


@struct
class QuotaEntity:
    entity_type: Annotated[str, wire(STRING, "0+")]
    entity_name: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None  # null: the default


@struct
class QuotaOperation:
    key: Annotated[str, wire(STRING, "0+")]
    value: Annotated[float, wire(FLOAT64, "0+")] = 0.0
    remove: Annotated[bool, wire(BOOL, "0+")] = False


@struct
class QuotaAlteration:
    entity: Annotated[tuple[QuotaEntity, ...], wire(array(QuotaEntity), "0+")] = ()
    ops: Annotated[tuple[QuotaOperation, ...], wire(array(QuotaOperation), "0+")] = ()


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Quotas to set and to remove, by entity.

    Source: KIP-546; Kafka AlterClientQuotasRequest.
    """

    entries: Annotated[tuple[QuotaAlteration, ...], wire(array(QuotaAlteration), "0+")] = ()
    validate_only: Annotated[bool, wire(BOOL, "0+")] = False


@struct
class QuotaAlterationResult:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    entity: Annotated[tuple[QuotaEntity, ...], wire(array(QuotaEntity), "0+")] = ()


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """One result per entity.

    Source: Kafka AlterClientQuotasResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    entries: Annotated[tuple[QuotaAlterationResult, ...], wire(array(QuotaAlterationResult), "0+")] = ()
