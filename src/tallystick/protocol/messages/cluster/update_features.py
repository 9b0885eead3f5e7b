"""UpdateFeatures (57): raise or lower the finalized level of a feature."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class FeatureUpdateKey:
    feature: Annotated[str, wire(STRING, "0+")]
    max_version_level: Annotated[int, wire(INT16, "0+")]  # below 1: remove the feature
    allow_downgrade: Annotated[bool, wire(BOOL, "0")] = False
    # 1 upgrade only, 2 safe downgrade, 3 unsafe downgrade.
    upgrade_type: Annotated[int, wire(INT8, "1+")] = 1


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """The finalized level to set for features such as `transaction.version`.

    1 replaces `allow_downgrade` by `upgrade_type` and adds `validate_only` (KIP-778).

    Source: KIP-584; Kafka UpdateFeaturesRequest.
    """

    timeout_ms: Annotated[int, wire(INT32, "0+")] = 60_000
    feature_updates: Annotated[tuple[FeatureUpdateKey, ...], wire(array(FeatureUpdateKey), "0+")] = ()
    validate_only: Annotated[bool, wire(BOOL, "1+")] = False


@struct
class UpdatableFeatureResult:
    feature: Annotated[str, wire(STRING, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """One result for all; up to version 1 also one per feature.

    Source: Kafka UpdateFeaturesResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    results: Annotated[
        tuple[UpdatableFeatureResult, ...], wire(array(UpdatableFeatureResult), "0-1", ignorable=True)
    ] = ()
