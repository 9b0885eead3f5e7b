"""Who may read the console, and the headers that every answer has. Pure.

A console on loopback needs no login, but a browser on the same machine shows pages of other sites, too. The
name of such a site may be made to lead to 127.0.0.1 (DNS rebinding), so requests are answered only under the
names that the console was started with. Nothing of a topic, a key or an id is ever sent as markup, and the
policy below would not run it.
"""

from collections.abc import Collection, Mapping
from typing import Final

from tallystick.kernel.value import Value
from tallystick.security.http_auth import HttpCredentials

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(Value):
    """Why a request is not answered: an HTTP status, a sentence, and the challenges of a login."""

    status: int
    text: str
    challenges: tuple[str, ...] = ()


def parse_host(header: str | None) -> str:
    """Return the name in a Host header, without its port; RFC 9110, 7.2."""
    text = (header or "").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text


def check_request(
    host: str | None, authorization: str | None, names: Collection[str], credentials: HttpCredentials
) -> Refusal | None:
    """Return why a request is refused; None if it is answered.

    Args:
        names: the host names that the console answers to; empty: any.
    """
    if names and parse_host(host) not in names:
        return Refusal(
            421,
            f"This console does not answer to the name {parse_host(host)!r}. Use the address that it "
            "printed at its start, or allow this name with --host-name.",
        )
    if not credentials.accept(authorization):
        return Refusal(401, "Log in.", credentials.list_challenges("tallystick console"))
    return None
