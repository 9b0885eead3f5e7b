"""ApiVersions (18): the APIs, versions and features of a broker; the first request of most clients.

Versions: 3 flexible request, client software (KIP-511) and features (KIP-584); 4 allows a feature whose
minimum version is 0 (KIP-1022); 5 names the broker that the client wants to reach (KIP-1242). The *response*
header always has version 0: a broker answers an unsupported version in version 0, so the client must be able
to read the header before it knows the version (KIP-511).
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, array, message, struct, wire


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """Name and version of the client software, and the broker it wants: both ids, or neither (KIP-1242)."""

    client_software_name: Annotated[str, wire(STRING, "3+", ignorable=True)] = ""
    client_software_version: Annotated[str, wire(STRING, "3+", ignorable=True)] = ""
    cluster_id: Annotated[str | None, wire(STRING, "5+", nullable="5+", ignorable=True)] = None
    node_id: Annotated[int, wire(INT32, "5+", ignorable=True)] = -1


@struct
class ApiVersion:
    api_key: Annotated[int, wire(INT16, "0+")]
    min_version: Annotated[int, wire(INT16, "0+")]
    max_version: Annotated[int, wire(INT16, "0+")]


@struct
class SupportedFeatureKey:
    name: Annotated[str, wire(STRING, "3+")] = ""
    min_version: Annotated[int, wire(INT16, "3+")] = 0
    max_version: Annotated[int, wire(INT16, "3+")] = 0


@struct
class FinalizedFeatureKey:
    name: Annotated[str, wire(STRING, "3+")] = ""
    max_version_level: Annotated[int, wire(INT16, "3+")] = 0
    min_version_level: Annotated[int, wire(INT16, "3+")] = 0


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """The supported versions of each API, and the features.

    With feature `transaction.version` >= 2 a write adds its partition to the transaction (KIP-890).
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    api_keys: Annotated[tuple[ApiVersion, ...], wire(array(ApiVersion), "0+")] = ()
    throttle_time_ms: Annotated[int, wire(INT32, "1+", ignorable=True)] = 0
    supported_features: Annotated[
        tuple[SupportedFeatureKey, ...], wire(array(SupportedFeatureKey), "3+", tag=0, ignorable=True)
    ] = ()
    finalized_features_epoch: Annotated[int, wire(INT64, "3+", tag=1, ignorable=True)] = -1
    finalized_features: Annotated[
        tuple[FinalizedFeatureKey, ...], wire(array(FinalizedFeatureKey), "3+", tag=2, ignorable=True)
    ] = ()
    zk_migration_ready: Annotated[bool, wire(BOOL, "3+", tag=3, ignorable=True)] = False
