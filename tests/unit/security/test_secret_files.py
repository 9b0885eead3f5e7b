"""A warning for each file with a secret that other users of the machine may read."""

from pathlib import Path

import pytest

from tallystick.cli.commands import broker
from tallystick.cli.scram_text import parse_scram_argument
from tallystick.security.secret_files import warn_of_readers
from tallystick.security.tls.settings import TlsSettings
from tallystick.security.tls.stores import BadKeyStore, load_key_store

USERS = 'listener.name.sasl_ssl.plain.sasl.jaas.config=PlainLoginModule required user_ada="x";\n'


def write(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_the_group_may_read_and_others_may_not(
    mode: int, *, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "secret", "x", mode)
    warn_of_readers("ssl.key.location", file)
    expected = f"ssl.key.location {file}: other users of this machine may read or change it, mode {mode:04o}"
    assert [message.partition(": chmod")[0] for message in caplog.messages] == [expected] * warns


def test_a_file_that_is_not_there_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_readers("ssl.key.location", tmp_path / "nothing")
    assert caplog.messages == []


@pytest.mark.parametrize("setting", ["ssl_keystore_location", "ssl_key_location"])
def test_a_private_key_is_warned_of(setting: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "key.pem", "no key", 0o644)
    with pytest.raises(BadKeyStore):
        load_key_store(TlsSettings(**{setting: str(file)}))
    (message,) = caplog.messages
    assert message.startswith(f"{setting.replace('_', '.')} {file}: other users")


def test_a_password_of_scram_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "admin.password", "secret\n", 0o644)
    parse_scram_argument(f"SCRAM-SHA-512=[name=admin,password_file={file}]")
    (message,) = caplog.messages
    assert message.startswith(f"password file {file}: other users")


@pytest.mark.parametrize(("text", "count"), [(USERS, 1), ("num.partitions=3\n", 0)])
def test_settings_with_users_of_plain_are_warned_of(
    text: str, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "server.properties", text, 0o644)
    assert broker.main(["--config", str(file)]) == 2  # no log.dirs
    assert [message.startswith(f"--config {file}: other users") for message in caplog.messages] == [
        True
    ] * count
