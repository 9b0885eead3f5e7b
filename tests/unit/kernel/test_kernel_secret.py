"""A secret is shown nowhere, and is otherwise a value like any other."""

import copy
import pickle
from dataclasses import dataclass
from typing import cast

import pytest

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig, SettingType, build_config, list_settings, setting

TEXT = "hunter2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretiveConfig:
    ssl_key_password: Secret | None = setting(None, "A password.", kind=SettingType.PASSWORD)
    port: int = setting(1, "A number.", low=1)


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
