"""The cluster's brokers, controller and finalized features (KIP-700, KIP-584)."""

from collections.abc import Mapping

from tallystick.admin.admin_call import AdminCall
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.metadata import Node
from tallystick.kernel.value import Value
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class ClusterDescription(Value, kw_only=True):
    """A cluster as one broker knows it. `find_controller` is None while there is no controller."""

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Node, ...]


async def describe(call: AdminCall) -> ClusterDescription:
    cluster = call.cluster
    image = await cluster.run_with_retries("Metadata", "", cluster.refresh, call.deadline)
    return ClusterDescription(
        cluster_id=image.cluster_id,
        controller=image.controller_id,
        brokers=tuple(image.nodes[node_id] for node_id in sorted(image.nodes)),
    )


async def describe_features(call: AdminCall) -> Mapping[str, int]:
    """Return the finalized levels by name, from the first broker that answers and has any."""
    cluster = call.cluster
    await call.list_brokers()

    async def attempt() -> Mapping[str, int]:
        failures: list[ClientError] = []
        nodes = sorted(cluster.image.nodes)
        for node_id in nodes:
            try:
                features = (await cluster.wait_for_versions(node_id)).features
            except ClientError as exc:
                failures.append(exc)
                continue
            cluster.connections.note_features(features)
            if cluster.connections.finalized_features.levels:
                break
        if failures and len(failures) == len(nodes):
            raise failures[0]
        return dict(cluster.connections.finalized_features.levels)

    return await cluster.run_with_retries("ApiVersions", "", attempt, call.deadline)


async def update_features(
    call: AdminCall, levels: Mapping[str, int], *, downgrade: bool, unsafe: bool, validate_only: bool
) -> None:
    """Set finalized levels, all or none.

    Raises: BrokerRefused with the controller's reason.
    """
    upgrade_type = 3 if unsafe else 2 if downgrade else 1
    request = UpdateFeaturesRequest(
        timeout_ms=call.cluster.config.request_timeout_ms,
        feature_updates=tuple(
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ),
        validate_only=validate_only,
    )
    subject = ", ".join(f"{name}={level}" for name, level in levels.items())

    async def attempt() -> None:
        answer = await call.cluster.send(await call.find_controller(), request, UpdateFeaturesResponse)
        failed = [each for each in answer.results if each.error_code]
        if answer.error_code or failed:
            first = failed[0] if failed else answer
            raise build_broker_error("UpdateFeatures", subject, first.error_code, first.error_message)

    await call.cluster.run_with_retries("UpdateFeatures", subject, attempt, call.deadline)
