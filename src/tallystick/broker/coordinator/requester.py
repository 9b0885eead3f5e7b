"""The client behind a command, as far as a history names it."""

from typing import Protocol


class Requester(Protocol):
    """The client whose request a command comes from, as it shows itself: for the history alone."""

    @property
    def client_id(self) -> str | None: ...

    @property
    def client_host(self) -> str: ...

    @property
    def client_port(self) -> int: ...
