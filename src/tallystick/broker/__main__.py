"""Entry point of the child process of an EmbeddedBroker.

Settings arrive as one JSON line on standard input, the address leaves as one on standard output, and the end
of standard input is the order to stop: a broker never outlives the program that embedded it.
"""

import asyncio
import json
import logging
import os
import sys

from tallystick.broker.serve import Hooks, Service, run
from tallystick.broker.server.start_checks import parse_config
from tallystick.kernel.errors import TallystickError


def main() -> int:
    settings: dict[str, str] = json.loads(sys.stdin.buffer.readline())
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def ready(service: Service) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), _stop_at_stdin_end, loop, service)
        address = service.broker.address
        answer = {"host": address.host, "port": address.port, "listeners": service.describe_listeners()}
        print(json.dumps(answer), flush=True)

    try:
        return run(parse_config(settings), Hooks(ready=ready))
    except (TallystickError, OSError) as exc:
        print(json.dumps({"error": str(exc)}), flush=True)
        return 1


def _stop_at_stdin_end(loop: asyncio.AbstractEventLoop, service: Service) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        service.stop_requested.set()


if __name__ == "__main__":
    sys.exit(main())
