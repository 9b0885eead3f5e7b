"""OAUTHBEARER on a listener: its keys, and the server's half of a login that is checked with them."""

from collections.abc import Callable
from functools import partial

from tallystick import _lazy
from tallystick.broker.config.listeners import Listener
from tallystick.broker.server.jwks_endpoint import fetch_jwks
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl.jwt_validator import build_jwt_validator
from tallystick.security.sasl.mechanism import SaslServer
from tallystick.security.sasl.oauthbearer import OauthBearerServer


def make_oauth_login(
    listener: Listener, now_ms: Callable[[], int]
) -> tuple[Callable[[], SaslServer], SigningKeys]:
    """Return what makes the server's half of a login, and its keys, which are not fetched yet.

    Raises: BadConfig, without the library for signatures.
    """
    settings = listener.oauth
    url = settings.sasl_oauthbearer_jwks_endpoint_url or ""
    fetch = partial(fetch_jwks, url, settings.https_ca_location)
    keys = SigningKeys(listener.name, fetch, settings.fetch_intervals)
    try:
        validate = build_jwt_validator(keys.find, settings.claim_rules, now_ms)
    except _lazy.MissingLibrary as exc:
        raise BadConfig(f"sasl.enabled.mechanisms: OAUTHBEARER: {exc}") from exc
    return partial(OauthBearerServer, validate), keys
