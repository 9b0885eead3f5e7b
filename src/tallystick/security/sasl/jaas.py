r"""`sasl.jaas.config`: Java's way to write a login, which users paste from their provider's page.

    <login module> required|requisite|sufficient|optional <key>=<value> <key>="<value>" ... ;

The grammar is that of Kafka's JaasConfig, which reads with Java's StreamTokenizer: bare words, texts in
quotes with backslash escapes, `//` and `/* */` comments. There is one entry, and its `;` is mandatory.

The login modules are a closed set, known by the last part of the name: some distributions move Kafka's
classes to another package. Nothing is loaded or instantiated: in Java this setting has led to code
execution through JNDI and LDAP modules (CVE-2023-25194). No error text and no repr shows a value, since one
of them is the password.
"""

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value

JAAS_LENGTH_MAX: Final = 64 * 1024
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_NO_REASON: Final = "only PlainLoginModule, ScramLoginModule and OAuthBearerLoginModule are known"
_REFUSED_MODULES: Final[Mapping[str, str]] = {
    "Krb5LoginModule": "Kerberos (GSSAPI) is not supported",
    "JndiLoginModule": "it is never loaded: it runs code of a server (CVE-2023-25194)",
    "LdapLoginModule": "it is never loaded: it runs code of a server (CVE-2025-27817)",
    "IAMLoginModule": (
        "use sasl.mechanism=OAUTHBEARER with a callback that has the token signed by your provider's library"
    ),
}


class LoginModule(Enum):
    """The login modules of Kafka's client, by the last part of their class name."""

    PLAIN = "PlainLoginModule"
    SCRAM = "ScramLoginModule"
    OAUTHBEARER = "OAuthBearerLoginModule"


class BadJaasConfig(TallystickError):
    """A `sasl.jaas.config` cannot be read. The text shows names and positions, and never a value."""


class JaasEntry(Value):
    """A login: the module, and its options as secrets."""

    module: LoginModule
    options: Mapping[str, Secret]

    def find(self, name: str) -> Secret | None:
        """Return an option, None if it is not there."""
        return self.options.get(name)


def parse_jaas_config(text: str) -> JaasEntry:
    """Parse the only entry of a `sasl.jaas.config`. Raises: BadJaasConfig."""
    if len(text) > JAAS_LENGTH_MAX:
        raise BadJaasConfig(f"it has {len(text)} characters, {JAAS_LENGTH_MAX} are read")
    tokens = _tokenize(text)
    if not tokens:
        raise BadJaasConfig("it is empty")
    module = _choose_module(tokens[0])
    if len(tokens) < 2 or tokens[1].text.lower() not in _FLAGS or tokens[1].is_quoted:
        raise BadJaasConfig(f"the login module is not followed by one of {', '.join(_FLAGS)}")
    end = next((i for i, token in enumerate(tokens) if token.is_symbol(";")), None)
    if end is None:
        raise BadJaasConfig("the ';' that ends the entry is missing; write it behind the last option")
    if end + 1 < len(tokens):
        raise BadJaasConfig(
            "there is more behind the ';' that ends the entry; exactly one login module is read"
        )
    return JaasEntry(module, MappingProxyType(_parse_options(tokens[2:end])))


class _JaasToken(Value):
    text: str
    is_quoted: bool

    def is_symbol(self, symbol: str) -> bool:
        return self.text == symbol and not self.is_quoted


def _choose_module(token: _JaasToken) -> LoginModule:
    name = token.text.rpartition(".")[2]
    if name in (each.value for each in LoginModule):
        return LoginModule(name)
    # A name is shown only if it looks like one: a password may have slipped into its place.
    name_text = f" {name}" if re.fullmatch("[A-Za-z0-9_$]*LoginModule", name) else ""
    raise BadJaasConfig(
        f"the login module{name_text} is not supported: {_REFUSED_MODULES.get(name, _NO_REASON)}"
    )


def _parse_options(tokens: list[_JaasToken]) -> dict[str, Secret]:
    options: dict[str, Secret] = {}
    for number in range((len(tokens) + 2) // 3):
        triple = tokens[3 * number : 3 * number + 3]
        if len(triple) < 3 or not triple[1].is_symbol("=") or triple[0].is_symbol("="):
            raise BadJaasConfig(
                f"option {number + 1} is not key=value; a value with other characters than letters, "
                "digits, '.', '-', '_' and '$' needs double quotes"
            )
        name, value = triple[0].text, triple[2]
        if value.is_symbol("="):
            raise BadJaasConfig(f'option {number + 1} has no value; write "" for an empty one')
        if name in options:
            raise BadJaasConfig(f"option {number + 1} is there twice")
        options[name] = Secret(value.text)
    return options


_PIECES: Final = re.compile(
    r"""(?P<space>[\s\x00-\x20]+|//[^\n]*|/\*.*?\*/)
    |(?P<word>[A-Za-z0-9_$.\u00a0-\U0010ffff-]+)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'
    |(?P<symbol>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


def _tokenize(text: str) -> list[_JaasToken]:
    tokens = []
    at = 0
    while at < len(text):
        match = _PIECES.match(text, at)
        if match is None:
            raise BadJaasConfig(f"at character {at + 1}: {_explain_character(text[at])}")
        at = match.end()
        kind = match.lastgroup
        if kind == "double" or kind == "single":
            tokens.append(_JaasToken(_ESCAPE.sub(_unescape, match[kind]), is_quoted=True))
        elif kind != "space":
            tokens.append(_JaasToken(match[0], is_quoted=False))
    return tokens


def _explain_character(character: str) -> str:
    if character in "\"'":
        return "a quote is not closed on its line"
    if character == "/":
        return "a '/' outside of quotes that begins no comment, or a comment that does not end"
    return "a character that is allowed in quotes only"


def _unescape(match: "re.Match[str]") -> str:
    """Return what StreamTokenizer makes of an escape: C's letters, octal numbers, else what is escaped."""
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPED.get(escaped, escaped)
