"""Credentials of HTTP requests: which headers let one in, and which files hold the secrets."""

import logging
from base64 import b64encode
from pathlib import Path

import pytest

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.security.http_auth import HttpCredentials
from tallystick.security.http_credentials import CredentialFiles, ReloadingCredentials

TOKEN = HttpCredentials(token=Secret("abc.def=="))
BASIC = HttpCredentials(user="Aladdin", password=Secret("open sesame"))
BOTH = HttpCredentials(token=Secret("abc"), user="u", password=Secret("geh:eim"))
# The example of RFC 7617, 2.
ALADDIN = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


def basic(text: str) -> str:
    return "Basic " + b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("credentials", "header", "is_accepted"),
    [
        (HttpCredentials(), None, True),
        (HttpCredentials(), "Bearer x", True),
        (TOKEN, None, False),
        (TOKEN, "", False),
        (TOKEN, "Bearer abc.def==", True),
        (TOKEN, "bearer  abc.def== ", True),
        (TOKEN, "Bearer abc.def=", False),
        (TOKEN, "Bearer", False),
        (TOKEN, "abc.def==", False),
        (TOKEN, "Basic abc.def==", False),
        (TOKEN, basic(":"), False),
        (TOKEN, "Bearer \xe9", False),
        (BASIC, ALADDIN, True),
        (BASIC, ALADDIN.replace("Basic", "BASIC"), True),
        (BASIC, ALADDIN[:-1], False),
        (BASIC, basic("Aladdin:"), False),
        (BASIC, basic("aladdin:open sesame"), False),
        (BASIC, "Basic \xff", False),
        (BASIC, "Basic //8=", False),
        (BASIC, "Bearer open sesame", False),
        (BOTH, "Bearer abc", True),
        (BOTH, basic("u:geh:eim"), True),
        (BOTH, basic("u:geh"), False),
    ],
)
def test_what_is_accepted(credentials: HttpCredentials, header: str | None, is_accepted: bool) -> None:
    assert credentials.accept(header) is is_accepted


def test_a_challenge_for_each_scheme_and_no_secret_in_it() -> None:
    assert BOTH.list_challenges("r") == ('Bearer realm="r"', 'Basic realm="r", charset="UTF-8"')
    assert HttpCredentials().list_challenges("r") == ()
    assert "geh" not in repr(BOTH)


def write(path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("geheim\n", 0o644, "other users of this machine may read or change it, mode 0644"),
        ("geheim\n", 0o620, "mode 0620"),
        ("", 0o600, "not one line with the secret"),
        ("\n", 0o600, "not one line with the secret"),
        ("geheim\ngeheim\n", 0o600, "not one line with the secret"),
        (b"geheim\xff", 0o600, "not a text in UTF-8"),
        ("geheim!", 0o600, "no bearer token"),
        ("geheim" * 2**14, 0o600, "not one line with the secret"),
        (None, 0, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, content: str | bytes | None, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        write(path, content, mode)
    with pytest.raises(BadConfig) as caught:
        CredentialFiles(prefix="metrics.auth.", token_file=str(path)).read()
    assert str(caught.value).startswith(f"metrics.auth.token.file {path}: ")
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_all_problems_of_the_files_come_together(tmp_path: Path) -> None:
    files = CredentialFiles(prefix="p.", token_file=f"{tmp_path}/a", user="u", password_file=f"{tmp_path}/b")
    with pytest.raises(BadConfig) as caught:
        files.read()
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["p.token.file", "p.password.file"]
    with pytest.raises(BadConfig) as caught:
        replace(files, prefix="--").read()
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["--token-file", "--password-file"]


def test_a_group_may_read_the_file_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    path = write(tmp_path / "token", "abc\r\n", 0o440)
    assert CredentialFiles(prefix="", token_file=path).read().token == Secret("abc")


def test_a_changed_file_is_used_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    reloading = ReloadingCredentials(CredentialFiles(prefix="p.", token_file=write(path, "erstes")))
    write(path, "zweites", 0o644)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            reloading.refresh()
        assert reloading.current.accept("Bearer erstes")
        assert caplog.text.count("those before are") == 1
        write(path, "zweites")
        reloading.refresh()
    assert reloading.current.accept("Bearer zweites")
    assert not reloading.current.accept("Bearer erstes")
    assert reloading.failure is None
    assert "erstes" not in caplog.text + repr(reloading.current)
    assert "zweites" not in caplog.text
