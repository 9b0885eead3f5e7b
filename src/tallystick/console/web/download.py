"""A whole key or value, to be saved: never shown, whatever it is."""

import re
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tallystick.client.errors import ClientError
from tallystick.console.collect.failures import describe_failure
from tallystick.console.lookup.record_query import BadQuery, parse_query
from tallystick.console.views.page_request import Lookups
from tallystick.protocol.records import RecordsError

PARTS: Final = ("key", "value")
_NOT_IN_A_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


async def download_record(lookups: Lookups | None, request: Request) -> Response:
    """Answer with the bytes of one record's key or value, as a file.

    `nosniff` is among the headers of every answer: no browser takes the bytes for a page or a script.
    """
    parameters = request.query_params
    topic, part = parameters.get("topic", ""), parameters.get("part", "value")
    try:
        query = parse_query(topic, parameters)
    except BadQuery as exc:
        return PlainTextResponse(str(exc), 400)
    if lookups is None or query is None or query.offset is None or part not in PARTS or not topic:
        return PlainTextResponse("topic, partition, offset, and part=key or part=value are needed.", 400)
    try:
        content = await lookups.download(query.partition, query.offset, is_key=part == "key")
    except (ClientError, RecordsError, TimeoutError) as exc:
        return PlainTextResponse(describe_failure(exc), 502)
    if content is None:
        return PlainTextResponse(f"{query.partition} has no {part} at offset {query.offset}.", 404)
    name = f"{_NOT_IN_A_FILE_NAME.sub('_', str(query.partition))}-{query.offset}-{part}.bin"
    headers = {"Content-Disposition": f"attachment; filename={quote(name)}"}
    return Response(content, media_type="application/octet-stream", headers=headers)
