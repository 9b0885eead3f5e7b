"""Which cluster a command talks to: option > environment > profile > an error that names the three ways."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tallystick.cli.connection import PATIENCE_MS, ClusterOptions, build_config, check_hosts
from tallystick.cli.main import main
from tallystick.cli.profiles import Profile, Profiles, change_profiles
from tallystick.kernel.settings import BadConfig

SERVERS = "bootstrap.servers"
LIMITS = {"default.api.timeout.ms", "max.block.ms", "request.timeout.ms"}


@pytest.fixture(autouse=True)
def profiles() -> Profiles:
    made = Profiles(
        by_name={
            "used": Profile.build({SERVERS: "used:1", "sasl.password": "s3cret"}),
            "other": Profile.build({SERVERS: "other:1", "client.id": "me"}),
            "login": Profile.build({"security.protocol": "SSL"}),
        },
        in_use="used",
    )
    change_profiles(lambda _: made)
    return made


def build(**options: Any) -> dict[str, object]:
    return build_config(ClusterOptions(**options))


def test_the_profile_in_use_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build()[SERVERS] == "used:1"
    monkeypatch.setenv("TALLYSTICK_BOOTSTRAP_SERVER", "env:1")
    assert build()[SERVERS] == "env:1"
    assert build(profile="other")[SERVERS] == "other:1"
    assert build(bootstrap_server="option:1")[SERVERS] == "option:1"
    monkeypatch.setenv("TALLYSTICK_BOOTSTRAP_SERVER", "")
    assert build()[SERVERS] == "used:1"


def test_a_login_goes_to_no_cluster_that_was_named_in_another_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert build()["sasl.password"] == "s3cret"
    assert "sasl.password" not in build(bootstrap_server="option:1")
    assert "sasl.password" not in build_config(ClusterOptions(), {SERVERS: "setting:1"})
    file = tmp_path / "client.properties"
    file.write_text("metadata.broker.list=file:1\n")  # librdkafka's name
    assert "sasl.password" not in build(command_config=file)
    monkeypatch.setenv("TALLYSTICK_BOOTSTRAP_SERVER", "env:1")
    assert "sasl.password" not in build()


def test_what_is_named_twice_is_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = build(bootstrap_server="option:1", profile="used")
    assert (both[SERVERS], both["sasl.password"]) == ("option:1", "s3cret")
    file = tmp_path / "client.properties"
    file.write_text("client.id=of-file\n")
    assert build(command_config=file, profile="other") == build(profile="other") | {"client.id": "of-file"}
    monkeypatch.setenv("TALLYSTICK_BOOTSTRAP_SERVER", "env:1")
    assert build(profile="login")[SERVERS] == "env:1"


def test_a_file_of_a_profile_is_weaker_than_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"client.id=of-file\n{SERVERS}=file:1\n")
    change_profiles(
        lambda _: Profiles(
            by_name={"p": Profile.build({SERVERS: "profile:1"}, command_config=file)}, in_use="p"
        )
    )
    config = build()
    assert (config[SERVERS], config["client.id"]) == ("profile:1", "of-file")
    file.unlink()
    with pytest.raises(BadConfig, match="No such file"):
        build()


def test_an_unknown_profile_names_those_that_there_are() -> None:
    with pytest.raises(BadConfig, match="there are login, other, used"):
        build(profile="prod")


def test_a_person_waits_for_ten_seconds() -> None:
    """`10 s by default for a person's command`, unless a setting says otherwise."""
    assert {name: build()[name] for name in LIMITS} == dict.fromkeys(LIMITS, PATIENCE_MS)
    assert not LIMITS & build_config(ClusterOptions(), serves=True).keys()
    for name in ("max.block.ms", "socket.timeout.ms"):  # the latter is librdkafka's name
        config = build_config(ClusterOptions(), {name: "60000"})
        assert not (LIMITS - {name}) & config.keys()


def test_a_host_that_does_not_exist_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`At once where trying again cannot help`; a resolver that is away may be back."""

    def look_up(host: str, port: object) -> list[object]:
        if host != "localhost":
            raise socket.gaierror(socket.EAI_NONAME if host == "absent" else socket.EAI_AGAIN, "")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for servers in ("localhost:1", "absent:1,localhost:1", "absent:1,away:1", "", "no address"):
        check_hosts({SERVERS: servers})
    with pytest.raises(BadConfig, match="there is no host absent"):
        check_hosts({SERVERS: "absent:1"})


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("consume", "t"),
        ("produce", "t"),
        ("doctor",),
        ("top", "--once"),
        ("console",),
        ("transactions", "describe", "t"),
    ],
    ids=lambda words: words[0],
)
def test_no_cluster_is_an_error_that_names_the_three_ways(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    change_profiles(lambda _: Profiles())
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    for way in ("--bootstrap-server", "TALLYSTICK_BOOTSTRAP_SERVER", "tallystick profile create"):
        assert way in said
