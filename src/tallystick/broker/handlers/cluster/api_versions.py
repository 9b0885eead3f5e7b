"""ApiVersions: the served APIs and versions, from the dispatch table, and the features (KIP-584).

A client may name the broker it wants, and learns here that a connection was misrouted (KIP-1242).
"""

import re
from collections.abc import Iterable
from typing import Final

from tallystick.broker.handlers.dispatch import Handler
from tallystick.broker.handlers.ports import ApiVersionsPort
from tallystick.broker.metadata.features import SUPPORTED_FEATURES
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import ApiKey, ApiSpec
from tallystick.protocol.messages.cluster.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# KIP-511: valid client software names and versions.
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def make_handler(specs: Iterable[ApiSpec]) -> Handler[ApiVersionsRequest]:
    """Return the handler that advertises `specs`."""
    api_keys = tuple(
        ApiVersion(api_key=spec.key, min_version=_find_advertised_min(spec), max_version=spec.max_version)
        for spec in sorted(specs, key=lambda spec: spec.key)
    )

    def handle(
        broker: ApiVersionsPort, request: ApiVersionsRequest, context: RequestContext
    ) -> ApiVersionsResponse:
        software = (request.client_software_name, request.client_software_version)
        if context.api_version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if (request.cluster_id is None) != (request.node_id == -1):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        wanted = (request.cluster_id, request.node_id)
        if request.cluster_id is not None and wanted != (broker.cluster_id, broker.config.node_id):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        return ApiVersionsResponse(
            api_keys=api_keys,
            supported_features=_list_supported_features(context.api_version),
            finalized_features_epoch=broker.features.epoch,
            finalized_features=tuple(
                # A feature at level 0 is not finalized.
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in broker.features.finalized.items()
                if level > 0
            ),
        )

    return handle


def _list_supported_features(api_version: int) -> tuple[SupportedFeatureKey, ...]:
    """List the supported features; without those that start at level 0 before version 4 (KIP-1022).

    Older clients cannot read a range from 0 on.
    """
    return tuple(
        SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in SUPPORTED_FEATURES.items()
        if levels.lowest > 0 or api_version >= 4
    )


def _find_advertised_min(spec: ApiSpec) -> int:
    # KAFKA-18659: librdkafka before 2.11 concludes from a Produce range above 0 that the broker lacks message
    # format 2. As in Kafka, versions 0 to 2 are advertised, and refused.
    return 0 if spec.key is ApiKey.PRODUCE else spec.min_version
