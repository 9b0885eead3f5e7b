"""TLS context and login of one client: made once from its settings, shared by its connections."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from tallystick.client.net.login_exchange import LoginExchange, LoginRequest
from tallystick.client.net.tokens import TokenSource
from tallystick.client.settings.config import Address
from tallystick.client.settings.security_config import SecurityConfig
from tallystick.kernel.check import require
from tallystick.security.sasl.client_mechanisms import create_sasl_client
from tallystick.security.sasl.oauthbearer import OAUTHBEARER
from tallystick.security.sasl.scram import SCRAM_MECHANISMS
from tallystick.security.sasl.scram_client import SaltedPasswords
from tallystick.security.tls.contexts import build_client_context


class ClientSecurity:
    """TLS context, login and tokens of one client. Its connections are on one loop."""

    def __init__(self, config: SecurityConfig) -> None:
        """Read the files that the settings name. Raises: BadConfig with all that is wrong with them."""
        self.ssl_context: ssl.SSLContext | None = None
        if config.has_tls:
            self.ssl_context = config.ssl_context or build_client_context(config.tls)
        self._login = config.sasl.login if config.has_sasl else None
        self._salted_passwords = SaltedPasswords()
        self._tokens = TokenSource(config.sasl, config.token_callback)

    @property
    def has_login(self) -> bool:
        """Whether a connection logs in before its first request."""
        return self._login is not None

    async def log_in(self, address: Address, send: Callable[[LoginRequest], Awaitable[object]]) -> int:
        """Log in over one connection, or log in again.

        Args:
            send: sends a request on that connection and returns its answer.
        Returns: how long the login lasts in milliseconds, 0 for as long as the connection.
        Raises: AuthenticationFailed, and errors of `send`.
        """
        login = require(self._login, "only a client with SASL logs in")
        token = await self._tokens.get() if login.mechanism == OAUTHBEARER else None
        exchange = LoginExchange(create_sasl_client(login, self._salted_passwords, token), str(address))
        is_slow = login.mechanism in SCRAM_MECHANISMS
        request: LoginRequest | None = exchange.start()
        while request is not None:
            response = await send(request)
            # PBKDF2 takes as long as the broker's iterations say; heartbeats of other connections go on.
            request = (
                await asyncio.to_thread(exchange.handle_response, response)
                if is_slow
                else exchange.handle_response(response)
            )
        return require(exchange.session_lifetime_ms, "the last answer has the session's lifetime")
