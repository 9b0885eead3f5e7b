"""The document with an identity provider's keys, from its server or from a file. Blocks: for a thread.

By https only, and a redirect to another host is an error (CVE-2025-27817). The parts of the standard library
for HTTP are loaded when they are needed.
"""

import ssl
import time
from pathlib import Path
from typing import Final

from tallystick import _lazy
from tallystick.broker.config.oauth_settings import find_key_file
from tallystick.security.https_opener import build_https_opener
from tallystick.security.sasl.key_set import KeySetFailure
from tallystick.security.tls.failures import explain_handshake_failure

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
_TIMEOUT_S: Final = 10.0
_PIECE_BYTES: Final = 64 * 1024


def fetch_jwks(url: str, ca_location: str | None) -> bytes:
    """Return the document at a URL. Raises: KeySetFailure."""
    path = find_key_file(url)
    if path is not None:
        return _read_file(Path(path))
    http_client, errors = _lazy.load("http.client"), _lazy.load("urllib.error")
    give_up_at = time.monotonic() + _TIMEOUT_S
    try:
        opener = build_https_opener(ssl.create_default_context(cafile=ca_location))
    except OSError as exc:
        raise KeySetFailure(f"https.ca.location: {exc}") from None
    document = b""
    try:
        request = _lazy.load("urllib.request").Request(url, headers={"Accept": "application/json"})
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            while piece := response.read1(_PIECE_BYTES):
                document += piece
                _check_size(len(document))
                if time.monotonic() > give_up_at:
                    raise KeySetFailure(f"it was not read within {_TIMEOUT_S:.0f} s")
    except errors.HTTPError as exc:
        with exc:
            raise KeySetFailure(f"the endpoint answered {exc.code}") from None
    except (OSError, ValueError, http_client.HTTPException) as exc:
        reason = exc.reason if isinstance(exc, errors.URLError) else exc
        if isinstance(reason, ssl.SSLError):
            raise KeySetFailure(f"{explain_handshake_failure(reason)} (https.ca.location)") from None
        raise KeySetFailure(f"the endpoint does not answer: {reason}") from None
    return document


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            document = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as exc:
        raise KeySetFailure(str(exc)) from None
    _check_size(len(document))
    return document


def _check_size(size: int) -> None:
    if size > DOCUMENT_BYTES_MAX:
        raise KeySetFailure(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
