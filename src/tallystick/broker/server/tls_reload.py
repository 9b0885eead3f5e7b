"""The TLS context of a listener, made anew when a file of its keys or certificates has changed.

A program that renews certificates (cert-manager, Vault, a cron job) writes files and tells no broker. A file
that cannot be used keeps the context before it in use. New connections get the new context, others keep
theirs.

As in Kafka's dynamic change of a key store, a certificate must keep its distinguished name and every
alternative name, or clients would fail that work now: DynamicBrokerConfig, SslFactory.
"""

import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from tallystick.broker.config.listeners import Listener
from tallystick.kernel.settings import BadConfig
from tallystick.security.tls.certificates import Certificate
from tallystick.security.tls.contexts import load_server_tls
from tallystick.security.tls.names import format_name

_log = logging.getLogger("tallystick.broker.tls")

FileState = tuple[str, int, int, int]


class ReloadingContext:
    """The context in use. `refresh` may run in another thread; `current` is replaced at once."""

    def __init__(self, listener: Listener) -> None:
        """Read the files. Raises: BadConfig."""
        self._listener = listener
        self._files = self._look()
        loaded = load_server_tls(listener.tls)
        self.current: ssl.SSLContext = loaded.context
        self.certificate: Certificate = loaded.certificate
        self.failure: str | None = None  # of the last reload; None while the files are as good as used
        self.reload_count = 0

    def refresh(self) -> None:
        """Load the files again if one has changed, or if they could not be used the last time. Blocking."""
        files = self._look()
        if files == self._files and self.failure is None:
            return
        self._files = files
        name = self._listener.name
        try:
            loaded = load_server_tls(self._listener.tls)
            self._check_names(loaded.certificate)
        except BadConfig as exc:
            if str(exc) != self.failure:
                _log.error("listener %s: its changed keys are not used, those before are: %s", name, exc)
            self.failure = str(exc)
            return
        self.current, self.certificate, self.failure = loaded.context, loaded.certificate, None
        self.reload_count += 1
        _log.info("listener %s: new keys are in use; valid until %s", name, loaded.certificate.not_after)

    def _check_names(self, new: Certificate) -> None:
        settings, old = self._listener.settings, self.certificate
        if new.subject != old.subject and not settings.ssl_allow_dn_changes:
            raise BadConfig(
                f"the certificate of {format_name(old.subject)} would become one of "
                f"{format_name(new.subject)} (ssl.allow.dn.changes)"
            )
        missing = len(old.alternative_names - new.alternative_names)
        if missing and not settings.ssl_allow_san_changes:
            raise BadConfig(f"the new certificate lacks {missing} alternative names (ssl.allow.san.changes)")

    def _look(self) -> tuple[FileState, ...]:
        return tuple(self._iter_files())

    def _iter_files(self) -> Iterator[FileState]:
        tls = self._listener.tls
        for text in (
            tls.ssl_keystore_location,
            tls.ssl_key_location,
            tls.ssl_certificate_location,
            tls.ssl_truststore_location,
        ):
            if text is None:
                continue
            path = Path(text)
            inside = sorted(path.iterdir()) if path.is_dir() else []
            for file in (path, *inside):
                yield _get_state(file)


def _get_state(file: Path) -> FileState:
    try:
        found = os.stat(file)
    except OSError:
        return str(file), 0, 0, 0
    return str(file), found.st_mtime_ns, found.st_size, found.st_ino
