"""Reads the body of a form, within bounds."""

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tallystick.console.web.guard import Refusal

BODY_BYTES_MAX: Final = 256 * 1024
"""An id may have 32,767 bytes, each of which may be three characters of a form."""
FIELDS_MAX: Final = 16
FORM_TYPE: Final = "application/x-www-form-urlencoded"
# With `no-referrer` a form has `Origin: null` (Fetch Standard, "append a request Origin header").
FORM_HEADERS: Final = {"Referrer-Policy": "same-origin"}


async def read_form(request: Request) -> dict[str, str] | Refusal:
    """Return the fields of a form, or why it is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        return Refusal(415, f"Send a form, as {FORM_TYPE}. Nothing was done.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return Refusal(413, f"The form has more than {BODY_BYTES_MAX} bytes. Nothing was done.")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        return Refusal(400, "The form cannot be read. Nothing was done.")
    if len(dict(fields)) != len(fields):
        return Refusal(400, "The form has a field twice. Nothing was done.")
    return dict(fields)


def answer_refusal(refusal: Refusal) -> Response:
    """Return the answer to a request that is refused."""
    answer = PlainTextResponse(refusal.text, refusal.status)
    for challenge in refusal.challenges:
        answer.headers.append("WWW-Authenticate", challenge)
    if refusal.retry_after_s:
        answer.headers["Retry-After"] = str(refusal.retry_after_s)
    return answer
