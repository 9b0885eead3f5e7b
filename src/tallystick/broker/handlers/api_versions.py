"""ApiVersions: what this broker serves, from the table that dispatches."""

import re
from collections.abc import Iterable
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.dispatch import Handler
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import ApiKey, ApiSpec
from tallystick.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

# KIP-511: what a client may call itself.
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def serving(specs: Iterable[ApiSpec]) -> Handler[ApiVersionsRequest]:
    """The handler that advertises `specs`."""
    served = tuple(
        ApiVersion(api_key=spec.key, min_version=_advertised_min(spec), max_version=spec.max_version)
        for spec in sorted(specs, key=lambda spec: spec.key)
    )

    def handle(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        named = (request.client_software_name, request.client_software_version)
        if context.api_version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in named):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=served)

    return handle


def _advertised_min(spec: ApiSpec) -> int:
    # KAFKA-18659: librdkafka before 2.11 takes a Produce range that begins above 0 for a broker without
    # message format 2. Versions 0 to 2 are advertised as Kafka does, and refused.
    return 0 if spec.key is ApiKey.PRODUCE else spec.min_version
