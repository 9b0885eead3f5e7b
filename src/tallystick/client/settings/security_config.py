"""Security settings of a client, in the dialects of Java, librdkafka and kafka-python.

Java's names are the ones used inside. Most names of the others are mere renames
(`kafka_names.RENAMED_SETTINGS`); what is more than that is here: values that differ, and objects that are
no texts. A setting that could not take effect is a problem: security is never ignored.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tallystick.kernel.settings import list_settings, parse_values
from tallystick.kernel.value import Value
from tallystick.security.protocol import SecurityProtocol
from tallystick.security.sasl.settings import SaslSettings
from tallystick.security.tls.settings import TlsSettings

SECURITY_PROTOCOLS: Final = tuple(SecurityProtocol.__members__)
TLS_SETTINGS: Final = {
    name: setting for name, setting in list_settings(TlsSettings).items() if name != "ssl.client.auth"
}
SASL_SETTINGS: Final = list_settings(SaslSettings)
SECURITY_SETTINGS: Final = {**TLS_SETTINGS, **SASL_SETTINGS}
OBJECT_SETTINGS: Final[Mapping[str, str]] = {
    "oauth_cb": "a function that returns a token and when it expires, in seconds since 1970",
    "sasl_oauth_token_provider": "an object whose method token() returns a token",
    "ssl_context": "an ssl.SSLContext",
}
"""Settings whose value is an object of Python: names of confluent-kafka and kafka-python."""

TRANSLATED_SETTINGS: Final = frozenset({"ssl_check_hostname", "ssl_ciphers", "ssl_certfile"})
"""Names of kafka-python that are more than renamed; their values differ, too."""

TokenCallback = Callable[..., object]


class SecurityConfig(Value, kw_only=True):
    """Protection of a client's connections, and its login.

    token_callback  for OAUTHBEARER, the function that returns tokens
    ssl_context     used as it is, instead of `tls`
    """

    protocol: str = "PLAINTEXT"
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()
    token_callback: TokenCallback | None = None
    ssl_context: ssl.SSLContext | None = None

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return SecurityProtocol(self.protocol).uses_tls

    @property
    def has_sasl(self) -> bool:
        """Whether the client logs in."""
        return SecurityProtocol(self.protocol).uses_sasl


def translate_security_texts(texts: dict[str, str]) -> dict[str, str]:
    """Return settings with Java's names and values where other clients' differ in more than the name."""
    result = dict(texts)
    protocol = result.get("security.protocol")
    if protocol is not None:  # Java reads it in any case.
        result["security.protocol"] = protocol.strip().upper()
    check = result.pop("ssl_check_hostname", None)
    if check is not None:
        is_on = check.strip().lower() == "true"
        result.setdefault("ssl.endpoint.identification.algorithm", "https" if is_on else "none")
    ciphers = result.pop("ssl_ciphers", None)
    if ciphers is not None:  # OpenSSL's lists have colons.
        result.setdefault("ssl.cipher.suites", ciphers.replace(":", ","))
    certificates = result.pop("ssl_certfile", None)
    if certificates is not None:
        has_own_key = "ssl.key.location" in result
        # One file with both, as in Java's PEM key stores, unless there is a second one.
        name = "ssl.certificate.location" if has_own_key else "ssl.keystore.location"
        result.setdefault(name, certificates)
    return result


def parse_security(
    texts: Mapping[str, str], objects: Mapping[str, object]
) -> tuple[SecurityConfig, list[str]]:
    """Return the security of a client, and every problem with it.

    Args:
        texts: all settings of the client, with Java's names.
        objects: values of OBJECT_SETTINGS.
    """
    tls_values, problems = parse_values(TlsSettings, {n: t for n, t in texts.items() if n in TLS_SETTINGS})
    sasl_values, sasl_problems = parse_values(
        SaslSettings, {n: t for n, t in texts.items() if n in SASL_SETTINGS}
    )
    problems += sasl_problems
    protocol = texts.get("security.protocol", "PLAINTEXT")
    if problems or protocol not in SECURITY_PROTOCOLS:
        return SecurityConfig(), problems
    callback = objects.get("oauth_cb")
    provider = objects.get("sasl_oauth_token_provider")
    if callback is None and provider is not None:
        callback = getattr(provider, "token", provider)
    context = objects.get("ssl_context")
    config = SecurityConfig(
        protocol=protocol,
        tls=TlsSettings(**tls_values),  # type: ignore[arg-type]
        sasl=SaslSettings(**sasl_values),  # type: ignore[arg-type]
        token_callback=callback if callable(callback) else None,
        ssl_context=context if isinstance(context, ssl.SSLContext) else None,
    )
    problem_by_name = {"oauth_cb": callback is not None and config.token_callback is None}
    problem_by_name["ssl_context"] = context is not None and config.ssl_context is None
    problems += [
        f"{name}: must be {OBJECT_SETTINGS[name]}" for name, is_wrong in problem_by_name.items() if is_wrong
    ]
    problems += _find_security_problems(config, texts)
    return config, problems


def build_security_notes(config: SecurityConfig) -> Iterator[str]:
    """Yield what a user should know about a login that works."""
    if config.protocol == "SASL_PLAINTEXT" and config.sasl.sasl_mechanism in ("PLAIN", "OAUTHBEARER"):
        yield (
            f"security.protocol: SASL_PLAINTEXT sends the {config.sasl.sasl_mechanism} login in clear; "
            "use SASL_SSL outside of a test"
        )
    if config.has_tls and config.tls.ssl_endpoint_identification_algorithm != "https":
        yield (
            "ssl.endpoint.identification.algorithm: off, and any host with a certificate of a trusted "
            "authority can pose as a broker"
        )


def _find_security_problems(config: SecurityConfig, texts: Mapping[str, str]) -> Iterator[str]:
    protocol = config.protocol
    if config.has_tls:
        if config.ssl_context is None:
            yield from config.tls.problems()
        elif names := sorted(texts.keys() & TLS_SETTINGS.keys()):
            yield f"{names[0]}: ssl_context is set, too: give TLS in one way"
    else:
        names = sorted(texts.keys() & TLS_SETTINGS.keys()) or (["ssl_context"] if config.ssl_context else [])
        yield from (
            f"{name}: is set, and security.protocol={protocol} has no TLS: use SSL or SASL_SSL"
            for name in names
        )
    if config.has_sasl:
        yield from config.sasl.find_problems(config.token_callback is not None)
    else:
        names = sorted(texts.keys() & SASL_SETTINGS.keys()) or (["oauth_cb"] if config.token_callback else [])
        yield from (
            f"{name}: is set, and security.protocol={protocol} has no login: use SASL_SSL" for name in names
        )
