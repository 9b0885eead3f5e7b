"""The TLS context of a listener, rebuilt when a file of its keys or certificates has changed.

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
from threading import Lock

from tallystick.broker.config.listeners import Listener
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.security.tls.certificates import Certificate
from tallystick.security.tls.contexts import ServerTls, load_server_tls
from tallystick.security.tls.names import format_name
from tallystick.security.tls.settings import TlsSettings

_log = logging.getLogger("tallystick.broker.tls")

FileState = tuple[str, int, int, int]


class ListenerKeys(Value):
    """The loaded keys of a listener, and the state of its files before they were read."""

    listener: Listener
    files: tuple[FileState, ...]
    loaded: ServerTls


class ReloadingContext:
    """The context in use. `refresh` and `prepare` may run in a thread; `current` is replaced atomically."""

    def __init__(self, listener: Listener) -> None:
        """Read the files. Raises: BadConfig."""
        keys = _load_keys(listener)
        self._lock = Lock()  # between a thread that has read changed files, and a change of the settings
        self._keys = keys
        self.current: ssl.SSLContext = keys.loaded.context
        self.certificate: Certificate = keys.loaded.certificate
        self.failure: str | None = None  # of the last reload; None while the files are as good as used
        self.reload_count = 0

    @property
    def listener(self) -> Listener:
        """The listener whose keys are in use."""
        return self._keys.listener

    def refresh(self) -> None:
        """Load the files again if one has changed, or if they could not be used the last time. Blocking."""
        before = self._keys
        files = _look(before.listener)
        if files == before.files and self.failure is None:
            return
        try:
            keys = self.prepare(before.listener)
        except BadConfig as exc:
            with self._lock:
                if self._keys is before:
                    self._record_failure(str(exc))
                    self._keys = replace(before, files=files)
            return
        with self._lock:
            if self._keys is before:
                self._take(keys)

    def prepare(self, listener: Listener) -> ListenerKeys:
        """Load keys that may take the place of those in use. Blocking. Raises: BadConfig."""
        keys = _load_keys(listener)
        self._check_names(keys.loaded.certificate)
        return keys

    def use(self, keys: ListenerKeys) -> None:
        """Put keys of `prepare` in use."""
        with self._lock:
            self._take(keys)

    def _take(self, keys: ListenerKeys) -> None:
        self._keys = keys
        loaded = keys.loaded
        self.current, self.certificate, self.failure = loaded.context, loaded.certificate, None
        self.reload_count += 1
        _log.info(
            "listener %s: new keys are in use; valid until %s",
            keys.listener.name,
            loaded.certificate.not_after,
        )

    def _record_failure(self, why: str) -> None:
        if why != self.failure:
            name = self.listener.name
            _log.error("listener %s: its changed keys are not used, those before are: %s", name, why)
        self.failure = why

    def _check_names(self, new: Certificate) -> None:
        settings, old = self.listener.settings, self.certificate
        if new.subject != old.subject and not settings.ssl_allow_dn_changes:
            raise BadConfig(
                f"the certificate of {format_name(old.subject)} would become one of "
                f"{format_name(new.subject)} (ssl.allow.dn.changes)"
            )
        missing = len(old.alternative_names - new.alternative_names)
        if missing and not settings.ssl_allow_san_changes:
            raise BadConfig(f"the new certificate lacks {missing} alternative names (ssl.allow.san.changes)")


def _load_keys(listener: Listener) -> ListenerKeys:
    return ListenerKeys(listener, _look(listener), load_server_tls(listener.tls))


def _look(listener: Listener) -> tuple[FileState, ...]:
    return tuple(_iter_files(listener.tls))


def _iter_files(tls: TlsSettings) -> Iterator[FileState]:
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
        status = os.stat(file)
    except OSError:
        return str(file), 0, 0, 0
    return str(file), status.st_mtime_ns, status.st_size, status.st_ino
