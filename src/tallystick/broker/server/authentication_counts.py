"""Counts of successful and failed authentications, for each listener.

Source: Kafka Selector's sensors, KIP-188 and KIP-368. As there, a handshake of TLS that fails counts as a
failed authentication; a peer that just leaves does not.
"""


class AuthenticationCounts:
    """The counts of one listener since the start. On the loop.

    no_reauth     logins of clients too old to renew a session (SaslAuthenticate 0)
    expired       connections closed because their session had ended and was not renewed
    """

    __slots__ = ("expired", "failed", "failed_renewals", "no_reauth", "successful", "successful_renewals")

    def __init__(self) -> None:
        self.successful = self.failed = 0
        self.successful_renewals = self.failed_renewals = 0
        self.no_reauth = self.expired = 0

    def record_success(self, *, is_renewal: bool) -> None:
        if is_renewal:
            self.successful_renewals += 1
        else:
            self.successful += 1

    def record_failure(self, *, is_renewal: bool) -> None:
        if is_renewal:
            self.failed_renewals += 1
        else:
            self.failed += 1
