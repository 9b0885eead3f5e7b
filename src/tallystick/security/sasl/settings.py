"""Settings of a client's login, under Kafka's names, and the login that they describe.

A login is written in one of three ways: `sasl.jaas.config` as Java has it, `sasl.username` and
`sasl.password` as librdkafka has them, or for OAUTHBEARER the settings of a token endpoint. Each means the
same, so they are not mixed.

Source: Kafka 4.3 SaslConfigs; librdkafka CONFIGURATION.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import SettingType, secret_setting, setting
from tallystick.kernel.value import Value
from tallystick.security.sasl.jaas import BadJaasConfig, JaasEntry, LoginModule, parse_jaas_config
from tallystick.security.sasl.oauthbearer import OAUTHBEARER, find_bad_extensions
from tallystick.security.sasl.plain import PLAIN
from tallystick.security.sasl.scram import SCRAM_MECHANISMS

MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
_MODULES: Final[Mapping[str, LoginModule]] = {
    PLAIN: LoginModule.PLAIN,
    **dict.fromkeys(SCRAM_MECHANISMS, LoginModule.SCRAM),
    OAUTHBEARER: LoginModule.OAUTHBEARER,
}
_JAAS: Final = "sasl.jaas.config"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
# Options of OAuthBearerLoginModule before KIP-1139, and what they are called since.
_OAUTH_OPTIONS: Final = {
    "clientId": _CLIENT_ID,
    "clientSecret": _CLIENT_SECRET,
    "scope": "sasl.oauthbearer.scope",
}
_EXTENSION_PREFIX: Final = "extension_"
_NOT_SUPPORTED: Final = {
    "GSSAPI": "GSSAPI (Kerberos) is not supported, and is Kafka's default: it needs C libraries and a KDC",
    "AWS_MSK_IAM": (
        "MSK takes OAUTHBEARER, too: set sasl.mechanism=OAUTHBEARER and oauth_cb to a function that calls "
        "aws_msk_iam_sasl_signer.MSKAuthTokenProvider.generate_auth_token"
    ),
}


class ClientCredentials(Value, kw_only=True):
    """A client's account at a token endpoint (RFC 6749, section 4.4)."""

    token_endpoint_url: str
    client_id: str
    client_secret: Secret
    scope: str | None
    is_urlencoded: bool
    ca_location: str | None


class SaslLogin(Value, kw_only=True):
    """Login of a client. `credentials` is for OAUTHBEARER, None where a callback gives the tokens."""

    mechanism: str
    username: str = ""
    password: Secret = Secret("")
    credentials: ClientCredentials | None = None
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """The login of one client, as text by dotted name; `login` is what it means."""

    sasl_mechanism: str = setting(
        "GSSAPI", f"How to log in: {', '.join(MECHANISMS)}. Kafka's default is not supported."
    )
    sasl_jaas_config: Secret | None = secret_setting(
        'The login in Java\'s form: `...PlainLoginModule required username="U" password="P";`, or with '
        "ScramLoginModule or OAuthBearerLoginModule."
    )
    sasl_username: str | None = setting(
        None, "Name of the user, instead of sasl.jaas.config. librdkafka's.", none=""
    )
    sasl_password: Secret | None = secret_setting("Password of sasl.username. librdkafka's.")
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        None, "Where OAUTHBEARER gets its tokens, by https; or pass a function as `oauth_cb`.", none=""
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        None, "Name of this client at the token endpoint.", none=""
    )
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = secret_setting(
        "Password of this client at the token endpoint."
    )
    sasl_oauthbearer_scope: str | None = setting(None, "Scope to ask the token endpoint for.", none="")
    sasl_oauthbearer_header_urlencode: bool = setting(
        False, "Whether name and password are URL-encoded for the token endpoint, as RFC 6749 asks."
    )
    sasl_oauthbearer_extensions: tuple[str, ...] = setting(
        (), "Extensions sent with a token, as KEY=VALUE,... librdkafka's."
    )
    https_ca_location: str | None = setting(
        None,
        "File with the certificates that are trusted at the token endpoint, in PEM; not set: the system's. "
        "librdkafka's.",
        none="",
    )
    sasl_login_refresh_window_factor: float = setting(
        0.8, "Share of a token's life after which it is replaced.", low=0.5, high=1.0
    )
    sasl_login_refresh_window_jitter: float = setting(
        0.05, "Random addition to that share.", low=0.0, high=0.25
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        60, "Least time between two replacements.", kind=SettingType.INT, low=0, high=900
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        300,
        "Time before its end at which a token is replaced at the latest.",
        kind=SettingType.INT,
        low=0,
        high=3600,
    )
    sasl_login_connect_timeout_ms: int | None = setting(
        None, "Time allowed to connect to the token endpoint.", kind=SettingType.INT, low=1, none=""
    )
    sasl_login_read_timeout_ms: int | None = setting(
        None, "Time allowed for the token endpoint's answer.", kind=SettingType.INT, low=1, none=""
    )
    sasl_login_retry_backoff_ms: int = setting(
        100, "Initial wait before the next request to the token endpoint; doubles with every failure.", low=0
    )
    sasl_login_retry_backoff_max_ms: int = setting(
        10_000, "Longest wait before the next request to the token endpoint.", low=0
    )

    def find_problems(self, has_token_callback: bool) -> Iterator[str]:
        """Yield what is wrong with the login. A listener that asks for none does not need to call this."""
        mechanism = self.sasl_mechanism
        if mechanism not in MECHANISMS:
            why = _NOT_SUPPORTED.get(mechanism, f"{mechanism!r} is not supported")
            yield f"sasl.mechanism: {why}; use one of {', '.join(MECHANISMS)}"
            return
        try:
            entry = self._parse_entry()
        except BadJaasConfig as exc:
            yield f"{_JAAS}: {exc}"
            return
        if entry is not None and entry.module is not _MODULES[mechanism]:
            yield (
                f"{_JAAS}: has {entry.module.value}, and sasl.mechanism={mechanism} needs "
                f"{_MODULES[mechanism].value}"
            )
        elif mechanism == OAUTHBEARER:
            yield from self._find_oauth_problems(entry, has_token_callback)
        else:
            if has_token_callback:
                yield f"oauth_cb: only OAUTHBEARER has tokens, and sasl.mechanism is {mechanism}"
            yield from self._find_password_problems(entry)

    @property
    def login(self) -> SaslLogin:
        """The login, from settings without problems."""
        entry = self._parse_entry()
        options: Mapping[str, Secret] = {} if entry is None else entry.options
        if self.sasl_mechanism == OAUTHBEARER:
            return SaslLogin(
                mechanism=OAUTHBEARER,
                credentials=self._build_credentials(options),
                extensions=tuple(self._list_extensions(options).items()),
            )
        username = options["username"].reveal() if "username" in options else self.sasl_username
        return SaslLogin(
            mechanism=self.sasl_mechanism,
            username=username or "",
            password=options.get("password") or self.sasl_password or Secret(""),
        )

    def _parse_entry(self) -> JaasEntry | None:
        text = self.sasl_jaas_config
        return None if text is None else parse_jaas_config(text.reveal())

    def _find_password_problems(self, entry: JaasEntry | None) -> Iterator[str]:
        named = [
            name
            for name, value in (("sasl.username", self.sasl_username), ("sasl.password", self.sasl_password))
            if value
        ]
        if entry is None:
            for name in ("sasl.username", "sasl.password"):
                if name not in named:
                    yield f"{name}: is missing, and so is {_JAAS}: {self.sasl_mechanism} needs a login"
            return
        if named:
            yield f"{' and '.join(named)}: {_JAAS} is set, too: give the login in one way"
        for name in ("username", "password"):
            if not entry.find(name):
                yield f"{_JAAS}: has no {name}"
        if entry.find("tokenauth"):
            yield f"{_JAAS}: tokenauth: delegation tokens are not supported"

    def _find_oauth_problems(self, entry: JaasEntry | None, has_token_callback: bool) -> Iterator[str]:
        options: Mapping[str, Secret] = {} if entry is None else entry.options
        named = self._list_endpoint_settings()
        for option, name in _OAUTH_OPTIONS.items():
            if option in options and named[name]:
                yield f"{name}: {_JAAS} has {option}, too: give it once"
        unknown = [
            name for name in options if name not in _OAUTH_OPTIONS and not name.startswith(_EXTENSION_PREFIX)
        ]
        if unknown:
            yield f"{_JAAS}: {', '.join(sorted(unknown))}: not supported"
        names = [name for name, value in named.items() if value] + [o for o in _OAUTH_OPTIONS if o in options]
        if has_token_callback:
            if names:
                yield f"oauth_cb: {names[0]} is set, too: tokens come from one place"
        else:
            yield from self._find_endpoint_problems(options)
        if any("=" not in each for each in self.sasl_oauthbearer_extensions):
            yield "sasl.oauthbearer.extensions: not a list of KEY=VALUE"
        elif bad := find_bad_extensions(self._list_extensions(options)):
            yield f"sasl.oauthbearer.extensions: {', '.join(bad)}: RFC 7628 allows no such extension"

    def _find_endpoint_problems(self, options: Mapping[str, Secret]) -> Iterator[str]:
        url = self.sasl_oauthbearer_token_endpoint_url
        if url is None:
            yield f"{_URL}: is missing, and so is oauth_cb: OAUTHBEARER needs tokens from one of them"
            return
        parts = urlsplit(url)
        # CVE-2025-27817: a URL of another kind reads files, or what only this host can reach.
        if parts.scheme != "https" or not parts.hostname or parts.username or parts.password:
            yield f"{_URL}: must be https://HOST/PATH, without a user in it"
        credentials = self._build_credentials(options)
        if credentials is not None:
            if not credentials.client_id:
                yield f"{_CLIENT_ID}: is missing"
            if not credentials.client_secret:
                yield f"{_CLIENT_SECRET}: is missing"

    def _list_endpoint_settings(self) -> dict[str, object]:
        return {
            _URL: self.sasl_oauthbearer_token_endpoint_url,
            _CLIENT_ID: self.sasl_oauthbearer_client_credentials_client_id,
            _CLIENT_SECRET: self.sasl_oauthbearer_client_credentials_client_secret,
            "sasl.oauthbearer.scope": self.sasl_oauthbearer_scope,
        }

    def _build_credentials(self, options: Mapping[str, Secret]) -> ClientCredentials | None:
        url = self.sasl_oauthbearer_token_endpoint_url
        if url is None:
            return None
        in_jaas = {name: secret.reveal() for name, secret in options.items() if name in ("clientId", "scope")}
        return ClientCredentials(
            token_endpoint_url=url,
            client_id=self.sasl_oauthbearer_client_credentials_client_id or in_jaas.get("clientId", ""),
            client_secret=(
                self.sasl_oauthbearer_client_credentials_client_secret
                or options.get("clientSecret")
                or Secret("")
            ),
            scope=self.sasl_oauthbearer_scope or in_jaas.get("scope"),
            is_urlencoded=self.sasl_oauthbearer_header_urlencode,
            ca_location=self.https_ca_location,
        )

    def _list_extensions(self, options: Mapping[str, Secret]) -> dict[str, str]:
        pairs = (each.partition("=") for each in self.sasl_oauthbearer_extensions)
        return {
            **{name.strip(): value.strip() for name, _, value in pairs},
            **{
                name.removeprefix(_EXTENSION_PREFIX): value.reveal()
                for name, value in options.items()
                if name.startswith(_EXTENSION_PREFIX)
            },
        }
