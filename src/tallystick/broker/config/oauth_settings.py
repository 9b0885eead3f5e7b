"""Settings of OAUTHBEARER on a listener: whose tokens are taken, and where their keys are.

A listener without keys would have to take every token (CVE-2026-33557), so it does not start. Keys are had
from a server by https, or from a file that is named a second time in `sasl.oauthbearer.allowed.files`
(CVE-2025-27817).

Source: KIP-768; Kafka SaslConfigs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import SettingType, setting
from tallystick.security.sasl.jaas import BadJaasConfig, LoginModule, parse_jaas_config
from tallystick.security.sasl.jwt_claims import ClaimRules
from tallystick.security.sasl.key_set import FetchIntervals

URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
CALLBACK_HANDLER: Final = "sasl.server.callback.handler.class"
_VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@dataclass(frozen=True, slots=True, kw_only=True)
class OauthSettings:
    """The settings of one listener that its logins with tokens follow."""

    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        None,
        "Where the keys are that tokens are signed with: https://HOST/PATH, or file:///PATH. OAUTHBEARER "
        "needs it.",
        none="",
    )
    sasl_oauthbearer_allowed_files: tuple[str, ...] = setting(
        (),
        "Files that sasl.oauthbearer.jwks.endpoint.url may name. Not Kafka's: it has a property of the JVM.",
    )
    https_ca_location: str | None = setting(
        None,
        "File with the certificates that are trusted at sasl.oauthbearer.jwks.endpoint.url, in PEM; not set: "
        "the system's. librdkafka's.",
        none="",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), "Audiences of which a token must have one; empty: any, or none."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        None, "The issuer that a token must have; not set: any.", none=""
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30,
        "How far the clocks of the issuer of tokens and of the broker may differ.",
        kind=SettingType.INT,
        low=0,
        high=3600,
    )
    sasl_oauthbearer_scope_claim_name: str = setting("scope", "The claim that has a token's scopes.")
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "The claim that has the name of the principal.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "Age at which the keys are fetched again.", low=1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100, "Initial wait after a fetch of the keys that failed; doubles with every failure.", low=1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000,
        "Longest wait after a fetch of the keys that failed, and how long the start of the broker waits for "
        "the first to succeed.",
        low=1,
    )

    @property
    def claim_rules(self) -> ClaimRules:
        return ClaimRules(
            expected_issuer=self.sasl_oauthbearer_expected_issuer,
            expected_audience=self.sasl_oauthbearer_expected_audience,
            clock_skew_ms=self.sasl_oauthbearer_clock_skew_seconds * 1000,
            scope_claim_name=self.sasl_oauthbearer_scope_claim_name,
            sub_claim_name=self.sasl_oauthbearer_sub_claim_name,
        )

    @property
    def fetch_intervals(self) -> FetchIntervals:
        return FetchIntervals(
            refresh_ms=self.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            retry_backoff_ms=self.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            retry_backoff_max_ms=self.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )

    def find_problems(self, jaas: Secret | None) -> Iterator[str]:
        """Yield why no token could be checked.

        Args:
            jaas: sasl.jaas.config of the mechanism, which Kafka needs and which says nothing here.
        """
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if url is None:
            yield f"{URL}: is missing: OAUTHBEARER takes no token that it has no key to check with"
        else:
            yield from self._find_url_problems(url)
        for name, text in (
            ("scope", self.sasl_oauthbearer_scope_claim_name),
            ("sub", self.sasl_oauthbearer_sub_claim_name),
        ):
            if not text:
                yield f"sasl.oauthbearer.{name}.claim.name: must not be empty"
        if jaas is not None:
            yield from _find_jaas_problems(jaas)

    def _find_url_problems(self, url: str) -> Iterator[str]:
        parts = urlsplit(url)
        path = find_key_file(url)
        if path is not None:
            if path not in self.sasl_oauthbearer_allowed_files:
                yield f"{URL}: {path} is not in sasl.oauthbearer.allowed.files"
        elif parts.scheme != "https" or not parts.hostname or parts.username or parts.password:
            yield f"{URL}: must be https://HOST/PATH, without a user in it, or file:///PATH"


def find_key_file(url: str) -> str | None:
    """Return the path of a `file:` URL, None for another."""
    parts = urlsplit(url)
    local = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    return unquote(parts.path) if local else None


def find_handler_problem(text: str) -> str | None:
    """Return what is wrong with `sasl.server.callback.handler.class` of OAUTHBEARER."""
    if text.strip() in ("", _VALIDATOR):
        return None
    return f"no Java classes are loaded: leave it out, or give {_VALIDATOR}"


def _find_jaas_problems(jaas: Secret) -> Iterator[str]:
    where = "oauthbearer.sasl.jaas.config"
    try:
        entry = parse_jaas_config(jaas.reveal())
    except BadJaasConfig as exc:
        yield f"{where}: {exc}"
        return
    if entry.module is not LoginModule.OAUTHBEARER:
        yield f"{where}: {entry.module.value} is not the login module of OAUTHBEARER"
    elif entry.options:
        names = ", ".join(sorted(entry.options))
        yield f"{where}: {names}: not supported; tokens without a signature are not taken"
