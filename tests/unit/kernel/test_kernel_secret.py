"""A secret is shown nowhere, and is otherwise a value like any other."""

import copy
import pickle
from dataclasses import dataclass
from typing import cast

import pytest

from tallystick.kernel.secret import Secret, chain, hide_logins
from tallystick.kernel.settings import BadConfig, SettingType, build_config, list_settings, setting
from tallystick.kernel.value import Value

TEXT = "hunter2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretiveConfig:
    ssl_key_password: Secret | None = setting(None, "A password.", kind=SettingType.PASSWORD)
    port: int = setting(1, "A number.", low=1)


class Holder(Value):
    text: str


def test_no_way_of_printing_shows_the_text() -> None:
    secret = Secret(TEXT)
    config = build_config(SecretiveConfig, {"ssl.key.password": TEXT})
    for shown in (repr(secret), str(secret), f"{secret:>12}", f"{secret!r}", repr(config)):
        assert TEXT not in shown
        assert "[hidden]" in shown
    assert TEXT not in repr([secret]) + repr({"a": secret}) + repr(vars(type(secret)))


def test_it_is_a_value() -> None:
    secret = Secret(TEXT)
    assert (secret, hash(secret)) == (Secret(TEXT), hash(Secret(TEXT)))
    assert secret != Secret("hunter3")
    assert secret != cast(object, TEXT)
    assert Secret("é") != Secret("e")
    assert not Secret("")
    for again in (pickle.loads(pickle.dumps(secret)), copy.deepcopy(secret)):
        assert again.reveal() == TEXT


def test_a_password_setting_is_read_trimmed_and_never_written() -> None:
    """Kafka's ConfigDef trims the text of a PASSWORD; its number in DescribeConfigs is 9 (KIP-569)."""
    made = list_settings(SecretiveConfig)["ssl.key.password"]
    assert SettingType.PASSWORD == 9
    assert made.parse(f" {TEXT}\n") == Secret(TEXT)
    assert made.format(Secret(TEXT)) is None
    assert made.describe_allowed() == "password"


def test_a_problem_elsewhere_does_not_show_it() -> None:
    with pytest.raises(BadConfig) as caught:
        build_config(SecretiveConfig, {"ssl.key.password": TEXT, "port": "0", "ssl.key.pasword": TEXT})
    assert TEXT not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://me:hunter2@host:1/x", "at http://me:[hidden]@host:1/x"),
        ("http://me:hunter2/x@host", "http://me:[hidden]@host"),
        ("'http://me:hunter2@hunter2@host/a@b'", "'http://me:[hidden]@host/a@b'"),
        ("http://a:hunter2@b,http://c:hunter2@d", "http://a:[hidden]@b,http://c:[hidden]@d"),
        ("https://hunter2@host", "https://[hidden]@host"),
        ("redis://:hunter2@host", "redis://:[hidden]@host"),
        ("postgresql://host/d?sslpassword=hunter2&x=1", "postgresql://host/d?sslpassword=[hidden]&x=1"),
        ("https://host/c?sv=1&sig=hunter2", "https://host/c?sv=1&sig=[hidden]"),
        ("postgresql://me@host/shop", "postgresql://me@host/shop"),
        ("abfss://lake@account.dfs.core.windows.net/t", "abfss://lake@account.dfs.core.windows.net/t"),
        ("http://host:8081/a@b and s3://bucket/x@v2", "http://host:8081/a@b and s3://bucket/x@v2"),
        ("http://[::1]:9092/a@b", "http://[::1]:9092/a@b"),
        ("me:hunter2@host", "me:hunter2@host"),
        ("postgresql://me@server:hunter2@host/shop", "postgresql://me@server:[hidden]@host/shop"),
        ("HTTPS://hunter2@host", "HTTPS://[hidden]@host"),
        ("http://me@host:8081/a@b", "http://[hidden]@host:8081/a@b"),
    ],
)
def test_a_login_in_a_url_is_hidden(text: str, shown: str) -> None:
    assert hide_logins(text) == shown
    assert str(BadConfig(text)) == shown, "and so in all texts of our errors"
    assert TEXT not in repr(Holder(text=text)) or TEXT in shown, "and of our values"


@pytest.mark.parametrize(
    "part", [";a", "?a", "&password", "://a:b", "a:", "https://a", ";password.", "://a@"]
)
def test_a_long_text_takes_no_longer_for_what_it_has(part: str) -> None:
    """Our errors quote what others wrote: a value of a file whose columns end with semicolons, for one."""
    text = "http://host " + part * (200_000 // len(part))
    assert len(hide_logins(text)) == len(text)


def test_a_cause_that_shows_a_login_is_no_cause() -> None:
    deep = ValueError("no answer")
    deep.__cause__ = OSError(f"http://me:{TEXT}@host")
    assert chain(deep) is None
    assert chain(ValueError("http://host")) is not None
