"""UpdateFeatures: raises or lowers the finalized levels of features, all or none."""

from itertools import islice

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.handlers.ports import FeaturesPort
from tallystick.broker.metadata.features import SUPPORTED_FEATURES, FeatureUpdate, UpgradeType
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

NOT_AUTHORIZED = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


async def handle(
    broker: FeaturesPort, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Update the features. Up to version 1 only a response without an error lists the features."""
    refusal = await _check_request(broker, request, context)
    if refusal is not None:
        return UpdateFeaturesResponse(error_code=refusal.code, error_message=refusal.reason)
    if context.api_version >= 2:
        return UpdateFeaturesResponse()
    return UpdateFeaturesResponse(
        results=tuple(UpdatableFeatureResult(feature=name) for name in _group_by_name(request))
    )


async def _check_request(
    broker: FeaturesPort, request: UpdateFeaturesRequest, context: RequestContext
) -> Reject | None:
    if not broker.authorizer.allows(context, Operation.ALTER, CLUSTER_RESOURCE):
        return NOT_AUTHORIZED
    by_name = _group_by_name(request)
    if len(by_name) > len(SUPPORTED_FEATURES):
        # At least one of them is unknown, so all are refused: the rest need not be validated.
        by_name = dict(islice(by_name.items(), len(SUPPORTED_FEATURES) + 1))
    updates = [_parse_update(update, context.api_version) for update in by_name.values()]
    return await broker.features.update(updates, validate_only=request.validate_only)


def _group_by_name(request: UpdateFeaturesRequest) -> dict[str, FeatureUpdateKey]:
    """Map updates by feature; the last one of a feature counts, as in the map that Kafka builds.

    Source: QuorumController.updateFeatures.
    """
    return {update.feature: update for update in request.feature_updates}


def _parse_update(update: FeatureUpdateKey, version: int) -> FeatureUpdate:
    kind: UpgradeType | None
    # KIP-778: version 1 replaced allow_downgrade by the upgrade type.
    if version == 0:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    else:
        kind = next((each for each in UpgradeType if each == update.upgrade_type), None)
    return FeatureUpdate(update.feature, update.max_version_level, kind)
