"""Errors of administration calls, in addition to the client's."""

from tallystick.client.errors import ClientError
from tallystick.kernel.errors import Remedy


class BrokerDown(ClientError):
    """A broker that the cluster lists could not be connected to; the other brokers were asked without it."""

    def __init__(self, broker: str, why: str) -> None:
        super().__init__(broker, why)
        self.broker, self.why = broker, why


class NothingOpen(ClientError):
    """The transaction is not open at the given place. It may have ended meanwhile, which needs no repair."""

    def __init__(self, partition: str, wanted: str, found: str) -> None:
        super().__init__(partition, wanted, found)
        self.partition, self.wanted, self.found = partition, wanted, found

    def what(self) -> str:
        return f"{self.partition}: no open transaction {self.wanted}; {self.found}"


class NotSafe(ClientError):
    """Ending this transaction would break something, and nothing was sent; `force` does it nevertheless."""

    remedy = Remedy.LOOK_UP

    def __init__(self, subject: str, why: str) -> None:
        super().__init__(subject, why)
        self.subject, self.why = subject, why
