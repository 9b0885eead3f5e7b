"""Requests by https to the host that was configured, and to no other (CVE-2025-27817).

The standard library's opener follows redirects to any host, and knows ftp: and file: as well. This one is
made of the parts that are wanted, which are loaded when it is made. What opens a socket is its caller.
"""

import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from tallystick import _lazy

# 307 and 308 repeat a request as it is; the others turn a POST into a GET.
_REPEATING: Final = frozenset({307, 308})


def build_https_opener(context: ssl.SSLContext) -> Any:
    """Return an opener for https, through a proxy of the environment, that redirects on one host only."""
    library = _lazy.load("urllib.request")

    class SameHostRedirects(library.HTTPRedirectHandler):  # type: ignore[name-defined, misc]
        def redirect_request(self, req: Any, *details: Any) -> Any:
            _, code, _, _, newurl = details
            before, after = urlsplit(req.full_url), urlsplit(newurl)
            same = (after.scheme, after.hostname, after.port) == (before.scheme, before.hostname, before.port)
            if not same or (code not in _REPEATING and req.get_method() != "GET"):
                return None
            return library.Request(
                newurl, req.data, dict(req.header_items()), method=req.get_method(), unverifiable=True
            )

    opener = library.OpenerDirector()
    for handler in (
        library.ProxyHandler(),
        library.HTTPSHandler(context=context),
        library.HTTPErrorProcessor(),
        library.HTTPDefaultErrorHandler(),
        SameHostRedirects(),
    ):
        opener.add_handler(handler)
    return opener
