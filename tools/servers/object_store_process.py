"""The process of `object_store`: moto's S3, one request at a time.

So "create if absent" is atomic, as it is in S3.
"""

import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from tools.servers.object_store import FAULTS_PATH
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

_ANSWER_LOST: Final = 500


class _Application:
    """moto's application, and the faults that a test has asked for."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._lose: str | None = None
        self._lost_count = 0
        self._is_unconditional = False

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        with self._lock:
            response = self._set_faults(request) if request.path == FAULTS_PATH else self._answer(request)
        return response(environ, start_response)

    def _set_faults(self, request: Request) -> Response:
        if request.method == "GET":
            return Response(str(self._lost_count))
        faults = request.get_json(force=True)
        self._lose = faults.get("lose")
        self._is_unconditional = faults.get("unconditional", False)
        return Response()

    def _answer(self, request: Request) -> Response:
        if self._is_unconditional:
            request.environ.pop("HTTP_IF_NONE_MATCH", None)
        response = Response.from_app(self._app, request.environ, buffered=True)
        if self._lose and request.method == "PUT" and self._lose in request.path:
            self._lose = None
            self._lost_count += 1
            return Response(status=_ANSWER_LOST)
        return response


class _QuietHandler(MotoRequestHandler):  # type: ignore[misc]
    def log_request(self, *_: object) -> None:
        """Log nothing: the output of tests is no access log."""


def main() -> None:
    """Serve until standard input ends, as it does with the process that has started this one."""
    server = make_server("127.0.0.1", 0, _Application(), threaded=True, request_handler=_QuietHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
