"""Access to the console, and the headers that every answer has. Pure.

A console on loopback needs no login, but a browser on the same machine shows pages of other sites, too. The
name of such a site may be made to lead to 127.0.0.1 (DNS rebinding), so requests are answered only under the
names that the console was started with. Nothing of a topic, a key or an id is ever sent as markup, and the
policy below would not run it.

A form that changes something must come from a page of this console: the browser says from which it comes, and
`console.actions.pending` demands a token that only such a page holds.
"""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

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

LOGIN_PATH: Final = "/login"
_OPEN_TO_ALL: Final = frozenset({LOGIN_PATH, "/static/console.css", "/static/icon.svg"})
"""The form that asks for the token, and what it looks like."""

_TOKEN_ONLY: Final = (
    "This console demands its token, in the header Authorization: Bearer TOKEN. A browser is asked for it at "
    f"{LOGIN_PATH}."
)


class Refusal(Value):
    """Why a request is not answered: an HTTP status, a sentence, and the challenges of a login.

    retry_after_s  after which it may come again; 0 where time changes nothing
    """

    status: int
    text: str
    challenges: tuple[str, ...] = ()
    retry_after_s: int = 0


def parse_host(header: str | None) -> str:
    """Return the name in a Host header, without its port; RFC 9110, 7.2."""
    text = (header or "").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text


def is_open_to_all(path: str) -> bool:
    """Return whether a path is answered before the login, where there is one by a form."""
    return path in _OPEN_TO_ALL


def find_own_path(text: str) -> str:
    """Return where a login leads: a path of this console; for anything else that of its first page.

    To a browser two slashes begin the address of another site, a backslash is a slash, and tabs and line
    breaks are nothing (WHATWG URL Standard, 4.4).
    """
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if is_plain and text.startswith("/") and not text.startswith("//") else "/"


def check_request(
    host: str | None,
    authorization: str | None,
    names: Collection[str],
    credentials: HttpCredentials,
    *,
    is_let_in: bool = False,
) -> Refusal | None:
    """Return why a request is refused; None if it is answered.

    Args:
        names: the host names that the console answers to; empty: any.
        is_let_in: by a session, or as what it asks for is open to all; no more credentials are needed.
    """
    if names and parse_host(host) not in names:
        return Refusal(
            421,
            f"This console does not answer to the name {parse_host(host)!r}. Use the address that it "
            "printed at its start, or allow this name with --host-name.",
        )
    if not is_let_in and not credentials.accept(authorization):
        text = "Log in." if credentials.password is not None else _TOKEN_ONLY
        return Refusal(401, text, credentials.list_challenges("tallystick console"))
    return None


def check_form_origin(headers: Mapping[str, str]) -> Refusal | None:
    """Return why a form is refused that was not sent by a page of this console; None if it was.

    A client that is no browser sends neither header, and needs the token all the same. Browsers send
    `Origin: null` where a page may send no referrer, and then Sec-Fetch-Site decides.

    Source: W3C Fetch Metadata, 2.3; Fetch Standard, "append a request Origin header".

    Args:
        headers: of the request, by names in lower case.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return Refusal(403, f"This form was sent by a page of another site ({site}). Nothing was done.")
    if origin is None or (origin == "null" and site is not None):
        return None
    try:
        sender = urlsplit(origin).netloc.lower()
    except ValueError:
        sender = ""
    if not sender or sender != headers.get("host", "").strip().lower():
        return Refusal(
            403, f"This form was sent by a page of {origin}, and not of this console. Nothing was done."
        )
    return None


def check_embedding(headers: Mapping[str, str]) -> Refusal | None:
    """Return why a dry run is refused: a page of another site may link to it, and not load it as its part.

    A dry run asks the cluster and the stores, and such a page could ask for a thousand.
    """
    site, target = headers.get("sec-fetch-site"), headers.get("sec-fetch-dest")
    if site in (None, "same-origin", "none") or target in (None, "document"):
        return None
    return Refusal(403, f"A dry run is no part of a page of another site ({site}, {target}).")


def name_user(authorization: str | None, credentials: HttpCredentials, *, has_session: bool = False) -> str:
    """Return who has sent a request that was let in, as the audit log names it."""
    if not credentials.are_required:
        return "loopback"  # elsewhere the console demands a login
    if has_session:
        return "token, by the login form"
    scheme = (authorization or "").strip().partition(" ")[0].lower()
    return "bearer token" if scheme == "bearer" else credentials.user
