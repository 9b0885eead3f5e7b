"""`sasl.jaas.config` as users paste it, and as they mistype it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.security.sasl.jaas import BadJaasConfig, JaasEntry, LoginModule, parse_jaas_config

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
EVENT_HUB = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=a+b/c="
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def reveal(entry: JaasEntry) -> dict[str, str]:
    return {name: value.reveal() for name, value in entry.options.items()}


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        (
            f"{PLAIN} required username='$ConnectionString' password=\"{EVENT_HUB}\";",
            LoginModule.PLAIN,
            {"username": "$ConnectionString", "password": EVENT_HUB},
        ),
        (f"kafkashaded.{SCRAM} required\n  username=alice\n  password=pa-ss_w0rd.$ ;\n", LoginModule.SCRAM,
         {"username": "alice", "password": "pa-ss_w0rd.$"}),
        (f'{SCRAM} REQUIRED username="al\\"ice" password="a\\\\b\\tc\\101" tokenauth="true";',
         LoginModule.SCRAM, {"username": 'al"ice', "password": "a\\b\tcA", "tokenauth": "true"}),
        (f'// a login\n{PLAIN} /* of\nlines */ optional user_bob="x;y" user_alice="";', LoginModule.PLAIN,
         {"user_bob": "x;y", "user_alice": ""}),
        (f'{OAUTH} required clientId="c" clientSecret="s" scope="kafka" extension_logicalCluster="lkc-1";',
         LoginModule.OAUTHBEARER,
         {"clientId": "c", "clientSecret": "s", "scope": "kafka", "extension_logicalCluster": "lkc-1"}),
        (f"{PLAIN} sufficient;", LoginModule.PLAIN, {}),
        (f"{PLAIN} required username=zoë password=пароль;", LoginModule.PLAIN,
         {"username": "zoë", "password": "пароль"}),
    ],
)  # fmt: skip
def test_entries(text: str, module: LoginModule, options: dict[str, str]) -> None:
    entry = parse_jaas_config(text)
    assert (entry.module, reveal(entry)) == (module, options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("  // nothing\n", "it is empty"),
        (f'{PLAIN} required username="u" password="hunter2"', "the ';' that ends the entry is missing"),
        (f'{PLAIN} required password="hunter2;', "a quote is not closed on its line"),
        (f'{PLAIN} required password="hunter2\n";', "a quote is not closed on its line"),
        (f'{PLAIN} required password="hunter2" /* ;', "a comment that does not end"),
        (f"{PLAIN} required password=hunter2+x;", "a character that is allowed in quotes only"),
        (f'{PLAIN} required password "hunter2";', "option 1 is not key=value"),
        (f'{PLAIN} required username="u" password;', "option 2 is not key=value"),
        (f"{PLAIN} required password=;", "option 1 is not key=value"),
        (f'{PLAIN} required username= password="hunter2";', "option 2 is not key=value"),
        (f'{PLAIN} required password="hunter2" password="hunter2";', "option 2 is there twice"),
        (f'{PLAIN} username="u" password="hunter2";', "not followed by one of required"),
        (f'{PLAIN} "required" password="hunter2";', "not followed by one of required"),
        (f'{PLAIN} required password="hunter2"; {PLAIN} required a=b;', "exactly one login"),
        ("hunter2 required;", "the login module is not supported: only PlainLoginModule"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "JndiLoginModule is not supported"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "never loaded"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "Kerberos"),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "OAUTHBEARER with a callback"),
        (f'{PLAIN} required password="{"hunter2" * 20_000}";', "65536 are read"),
        ("\\", "allowed in quotes only"),
    ],
)  # fmt: skip
def test_mistakes_are_named_and_no_value_is_shown(text: str, why: str) -> None:
    with pytest.raises(BadJaasConfig, match=why) as caught:
        parse_jaas_config(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_nothing_prints_the_password() -> None:
    entry = parse_jaas_config(f'{PLAIN} required username="u" password="hunter2";')
    assert "hunter2" not in repr(entry) + str(entry)
    assert entry.find("password") is not None
    assert entry.find("other") is None


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",))))
def test_any_text_in_quotes_comes_back(password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    entry = parse_jaas_config(f'{PLAIN} required password="{escaped}";')
    assert reveal(entry) == {"password": password}


@given(st.text(alphabet="ab\"'\\;= /*\n$", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_jaas_config(f"{PLAIN} required {text}")
    except BadJaasConfig:
        pass
