"""Credentials of HTTP requests from files, read again when a file has changed.

The secret itself is in no setting, so that it is in no process list and in no configuration file that others
read. A changed file that cannot be used leaves the credentials before it in force.
"""

import logging
import os
import stat
from typing import Final

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value
from tallystick.security.http_auth import HttpCredentials, is_token

_log = logging.getLogger("tallystick.security.http")

SECRET_BYTES_MAX: Final = 64 * 1024
# A secret mounted by Kubernetes is readable by a group; the rest of the machine has no business with it.
_FORBIDDEN_MODE: Final = stat.S_IWGRP | stat.S_IRWXO


class CredentialFiles(Value, kw_only=True):
    """The files, and the names of the settings for messages; `user` is in the settings themselves."""

    prefix: str
    token_file: str | None = None
    user: str = ""
    password_file: str | None = None

    def name(self, words: str) -> str:
        """Return an option (--token-file) or a setting (metrics.auth.token.file) as its user writes it."""
        return f"{self.prefix}{words.replace('.', '-') if self.prefix == '--' else words}"

    @property
    def are_given(self) -> bool:
        """Whether requests need credentials."""
        return bool(self.token_file or self.password_file)

    def find_problems(self) -> list[str]:
        """Return violations of rules that need no file."""
        problems = []
        if bool(self.user) != bool(self.password_file):
            problems.append(f"{self.name('user')} and {self.name('password.file')}: give both, or none")
        if ":" in self.user:
            problems.append(f"{self.prefix}user: a user of HTTP's Basic authentication has no colon")
        return problems

    def read(self) -> HttpCredentials:
        """Read the files. Raises: BadConfig with every problem."""
        token, password, problems = None, None, list[str]()
        with collect_problems(problems):
            token = self._read_token()
        with collect_problems(problems):
            password = read_secret_file(self.name("password.file"), self.password_file)
        if problems:
            raise BadConfig("\n".join(problems))
        return HttpCredentials(token=token, user=self.user, password=password)

    def _read_token(self) -> Secret | None:
        name = self.name("token.file")
        token = read_secret_file(name, self.token_file)
        if token is not None and not is_token(token.reveal()):
            raise BadConfig(f"{name} {self.token_file}: no bearer token: letters, digits and -._~+/ only")
        return token


def read_secret_file(setting: str, path: str | None) -> Secret | None:
    """Return the one line of a file; None without a path.

    Raises: BadConfig, also for a file that others may read or change.
    """
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as exc:
        raise BadConfig(f"{setting} {path}: {exc.strerror or exc}") from exc
    if mode & _FORBIDDEN_MODE:
        raise BadConfig(
            f"{setting} {path}: other users of this machine may read or change it, mode "
            f"{stat.S_IMODE(mode):04o}: chmod 600 it, and choose another secret"
        )
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadConfig(f"{setting} {path}: not a text in UTF-8") from None
    if not text or not text.isprintable() or len(content) > SECRET_BYTES_MAX:
        raise BadConfig(f"{setting} {path}: not one line with the secret and nothing else")
    return Secret(text)


class ReloadingCredentials:
    """The credentials in force. `refresh` may run in another thread; `current` is replaced atomically."""

    def __init__(self, files: CredentialFiles) -> None:
        """Read the files. Raises: BadConfig."""
        self._files = files
        self.current = files.read()
        self.failure: str | None = None  # of the last reading

    def refresh(self) -> None:
        """Read the files again. Blocking."""
        try:
            credentials = self._files.read()
        except BadConfig as exc:
            if str(exc) != self.failure:
                _log.error("changed credentials are not used, those before are: %s", exc)
            self.failure = str(exc)
            return
        self.failure = None
        if credentials != self.current:
            self.current = credentials
            _log.info("new credentials are in use: %s*", self._files.prefix)
