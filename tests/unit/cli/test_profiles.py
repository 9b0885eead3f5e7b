"""`tallystick profile`: named clusters, in a file of one's own."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tallystick.cli.main import main
from tallystick.cli.profiles import Profile, Profiles, change_profiles, read_profiles
from tallystick.kernel.settings import BadConfig

PASSWORD = 'pa"ss\\word\x7fé😀\n'


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["profile", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_life_of_a_profile(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list")[0] == 0
    code, _, said = run(capsys, "create", "staging", "--bootstrap-server", "staging:9092")
    assert (code, said) == (0, f"tallystick: profile staging is in use ({config_home}/profiles.toml)\n")
    login = (
        "--set",
        "security.protocol=SASL_SSL",
        "--set",
        "sasl.mechanism=PLAIN",
        "--set",
        "sasl.username=a",
    )
    assert (
        run(capsys, "create", "prod", "--bootstrap-server", "prod:1", *login, "--set", "sasl.password=s3c")[0]
        == 0
    )
    rows = json.loads(run(capsys, "list", "--output", "json")[1])
    assert [(row["Profile"], row["InUse"]) for row in rows] == [("prod", False), ("staging", True)]
    assert run(capsys, "list")[1].splitlines()[1].split() == ["prod", "no", "prod:1", "-"]
    assert run(capsys, "use", "prod")[0] == 0
    shown = run(capsys, "show")[1]
    assert "s3c" not in shown
    assert "[hidden]" in shown
    assert read_profiles().find("prod").read_settings()["sasl.password"] == "s3c"
    assert run(capsys, "delete", "prod")[0] == 5
    assert run(capsys, "delete", "prod", "--yes")[0] == 0
    assert run(capsys, "show")[0] == 2
    assert run(capsys, "show", "staging")[0] == 0


def test_the_file_is_for_its_user_alone(config_home: Path) -> None:
    change_profiles(lambda _: Profiles(by_name={"a": Profile.build({"bootstrap.servers": "a:1"})}))
    assert stat.S_IMODE((config_home / "profiles.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE(config_home.stat().st_mode) == 0o700
    assert [each.name for each in config_home.iterdir()] == ["profiles.toml"]


def test_profiles_that_are_created_at_once_are_all_there(config_home: Path) -> None:
    def create(number: int) -> None:
        profile = Profile.build({"bootstrap.servers": f"a:{number}"})
        change_profiles(lambda profiles: profiles.add(f"p{number}", profile))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(1, 33)))
    assert set(read_profiles().by_name) == {f"p{number}" for number in range(1, 33)}


def test_a_list_is_no_setting(config_home: Path) -> None:
    config_home.mkdir(exist_ok=True)
    (config_home / "profiles.toml").write_text('[profiles.a]\n"bootstrap.servers" = ["a:1"]\n')
    with pytest.raises(BadConfig, match=r"profile 'a': bootstrap\.servers: must be a text"):
        read_profiles()


def test_any_value_is_read_back(config_home: Path) -> None:
    profile = Profile.build({"sasl.password": PASSWORD, "client.id": "a b"}, Path("/etc/a 'b'.properties"))
    change_profiles(lambda _: Profiles(by_name={"a.b": profile}, in_use="a.b"))
    assert read_profiles() == Profiles(by_name={"a.b": profile}, in_use="a.b")
    assert "é" not in repr(read_profiles())


def test_a_link_stays_one(config_home: Path, tmp_path: Path) -> None:
    config_home.mkdir()
    (config_home / "profiles.toml").symlink_to(tmp_path / "dotfiles.toml")
    change_profiles(lambda _: Profiles())
    assert (config_home / "profiles.toml").is_symlink()
    assert (tmp_path / "dotfiles.toml").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("create", "a"), "which cluster?"),
        (("create", "a b", "--bootstrap-server", "a:1"), "a name has letters"),
        (("create", "a", "--bootstrap-server", "a"), "'a' is not host:port"),
        (("create", "a", "--bootstrap-server", "a:1", "--set", "acks"), "is not NAME=VALUE"),
        (("create", "a", "--bootstrap-server", "a:1", "--set", "asks=1"), "asks"),
        (("create", "a", "--command-config", "missing"), "No such file"),
        (("create", "old", "--bootstrap-server", "a:1"), "there is one already"),
        (("use", "a"), "there is no such profile; there are old"),
        (("delete", "a", "--yes"), "there is no such profile"),
        (("show", "a"), "there is no such profile"),
    ],
)
def test_what_is_wrong_changes_nothing(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Profiles(by_name={"old": Profile.build({"bootstrap.servers": "old:1"})}, in_use="old")
    change_profiles(lambda _: before)
    code, out, said = run(capsys, *words)
    assert (code, out) == (2, "")
    assert problem in said
    assert read_profiles() == before


@pytest.mark.parametrize("text", ["in-use = 1", "profiles = 1", "[profiles]\na = 1", "[profil.a]", "="])
def test_a_damaged_file_is_named(text: str, config_home: Path) -> None:
    config_home.mkdir()
    (config_home / "profiles.toml").write_text(text)
    with pytest.raises(BadConfig, match=r"profiles\.toml: "):
        read_profiles()


def test_a_damaged_file_is_not_read_for_a_cluster_that_is_named(
    config_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_home.mkdir()
    (config_home / "profiles.toml").write_text("=")
    assert main(["doctor", "--bootstrap-server", "b:1", "--topic", ""]) == 2
    assert "--topic: must not be empty" in capsys.readouterr().err
