"""A start with security settings that cannot be meant: each is told in a line, and all of them at once."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.support.certificates import format_certificate, format_key, make_key_pair

from tallystick.cli.commands import broker

LISTENERS = ("listeners=GOOD://127.0.0.1:0,A://127.0.0.1:0", "listener.security.protocol.map=GOOD:SSL,A:SSL")
GOOD = "listener.name.good.ssl.keystore.location={dir}/good.pem"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    key, certificate = make_key_pair()
    (tmp_path / "good.pem").write_text(format_key(key) + format_certificate(certificate))
    (tmp_path / "keyonly.pem").write_text(format_key(key))
    (tmp_path / "chainonly.pem").write_text(format_certificate(certificate))
    (tmp_path / "locked.pem").write_text(format_key(key, "geheim") + format_certificate(certificate))
    other, _ = make_key_pair()
    (tmp_path / "mixed.pem").write_text(format_key(other) + format_certificate(certificate))
    store = pkcs12.serialize_key_and_certificates(
        b"n", key, certificate, None, serialization.BestAvailableEncryption(b"geheim")
    )
    (tmp_path / "store.p12").write_bytes(store)
    return tmp_path


A = "listener.name.a."
# The settings with one mistake, and what the line about it says.
MISTAKES = {
    "misspelt": ((f"{A}ssl.keystore.loctaion=/x",), "unknown setting; did you mean ssl.keystore.location?"),
    "misspelt without a prefix": (("ssl.keystore.lcoation=/x",), "ssl.keystore.lcoation: "),
    "misspelt, not of security": (("log.retention.mss=1",), "did you mean log.retention.ms?"),
    "key without chain": ((f"{A}ssl.keystore.location={{dir}}/keyonly.pem",), "without its certificates"),
    "chain without key": ((f"{A}ssl.keystore.location={{dir}}/chainonly.pem",), "no private key"),
    "inline key without chain": ((f"{A}ssl.keystore.key=geheim",), "a private key needs its certificates"),
    "inline chain without key": (
        (f"{A}ssl.keystore.certificate.chain=geheim",),
        "certificates need their private key",
    ),
    "key of another certificate": (
        (f"{A}ssl.keystore.location={{dir}}/mixed.pem",),
        "the private key is not the one of the first certificate",
    ),
    "wrong password of the store": (
        (f"{A}ssl.keystore.location={{dir}}/store.p12", f"{A}ssl.keystore.password=geheim2"),
        "the password does not open the PKCS12 store",
    ),
    "wrong password of the key": (
        (f"{A}ssl.keystore.location={{dir}}/locked.pem", f"{A}ssl.key.password=geheim2"),
        "ssl.key.password does not open the private key",
    ),
    "no such store": ((f"{A}ssl.truststore.location={{dir}}/none",), "No such file or directory"),
    "rule that is none": ((f"{A}ssl.principal.mapping.rules=RULE:x",), "is neither DEFAULT nor RULE"),
    "rule that is no pattern": ((f"{A}ssl.principal.mapping.rules=RULE:(/$1/",), "is no pattern here"),
    "rule that is never reached": (
        (f"{A}ssl.principal.mapping.rules=DEFAULT,RULE:CN=(.*)/$1/",),
        "the rules behind DEFAULT are never reached",
    ),
    "listener that is not there": (("listener.name.b.ssl.client.auth=none",), "there is no listener B"),
    "client auth that is none": ((f"{A}ssl.client.auth=want",), "'want' is not one of none"),
    "client auth without trust": ((f"{A}ssl.client.auth=required",), "without ssl.truststore.location"),
    "rights without authorizer": (("super.users=User:a",), "has no effect without authorizer.class.name"),
    "metrics without TLS": (("metrics.listener=ftp://127.0.0.1:0",), "is neither http:// nor https://"),
}


def start(folder: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> list[str]:
    options = [part for setting in settings for part in ("-o", setting.format(dir=folder))]
    assert broker.main(["--data-dir", str(folder / "data"), *options]) == 2
    error = capsys.readouterr().err
    assert "geheim" not in error
    return [line.strip().removeprefix("tallystick broker: ") for line in error.splitlines()]


def with_key(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Give listener A a key that is good unless the mistake is in its key."""
    is_about_key = any(".ssl.keystore." in setting for setting in settings)
    return settings if is_about_key else (GOOD.replace(".good.", ".a."), *settings)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, why = MISTAKES[mistake]
    lines = [line for line in start(folder, capsys, *LISTENERS, GOOD, *with_key(settings)) if why in line]
    assert len(lines) == 1, mistake


def test_a_map_names_listeners_that_exist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = "listeners=A://127.0.0.1:0"
    lines = start(folder, capsys, first, "listener.security.protocol.map=A:PLAINTEXT,B:SSL")
    assert lines == ["listener.security.protocol.map: B is not in listeners, which has A"]
    lines = start(folder, capsys, first, "listener.security.protocol.map=PLAINTEXT:PLAINTEXT")
    assert lines == ["listeners: A is not in listener.security.protocol.map, which has PLAINTEXT"]


def test_all_mistakes_are_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One listener for each: settings that cannot be read, rules between them, and files."""
    named = {f"L{number}": mistake for number, mistake in enumerate(MISTAKES.values())}
    settings = [
        "listeners=" + ",".join(f"{name}://127.0.0.1:0" for name in named),
        "listener.security.protocol.map=" + ",".join(f"{name}:SSL" for name in named),
    ]
    for name, (own, _) in named.items():
        settings += [part.replace(A, f"listener.name.{name.lower()}.") for part in with_key(own)]
    lines = start(folder, capsys, *settings)
    for mistake, (_, why) in MISTAKES.items():
        assert any(why in line for line in lines), (mistake, lines)
