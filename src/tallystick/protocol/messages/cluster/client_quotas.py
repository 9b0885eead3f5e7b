"""DescribeClientQuotas (48) and AlterClientQuotas (49): quotas of users, client ids and addresses."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, FLOAT64, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class QuotaFilterComponent:
    entity_type: Annotated[str, wire(STRING, "0+")]
    match_type: Annotated[int, wire(INT8, "0+")]  # 0 this name, 1 the default, 2 any name
    match: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """List the quotas of entities; `strict` leaves out those with types that the filter does not name.

    Source: KIP-546; Kafka DescribeClientQuotasRequest.
    """

    components: Annotated[tuple[QuotaFilterComponent, ...], wire(array(QuotaFilterComponent), "0+")] = ()
    strict: Annotated[bool, wire(BOOL, "0+")] = False


@struct
class QuotaEntityDescription:
    entity_type: Annotated[str, wire(STRING, "0+")]
    entity_name: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@struct
class QuotaValue:
    key: Annotated[str, wire(STRING, "0+")]
    value: Annotated[float, wire(FLOAT64, "0+")]


@struct
class QuotaDescription:
    entity: Annotated[tuple[QuotaEntityDescription, ...], wire(array(QuotaEntityDescription), "0+")] = ()
    values: Annotated[tuple[QuotaValue, ...], wire(array(QuotaValue), "0+")] = ()


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The quotas of each entity; null with an error.

    Source: Kafka DescribeClientQuotasResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    entries: Annotated[
        tuple[QuotaDescription, ...] | None, wire(array(QuotaDescription), "0+", nullable="0+")
    ] = None


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
