"""SaslHandshake (17): choose a SASL mechanism; SaslAuthenticate (36): the bytes of the login."""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT16, INT64, STRING, array, message, wire


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest:
    """The SASL mechanism; from version 1 on SaslAuthenticate carries its tokens (KIP-152).

    Source: Kafka SaslHandshakeRequest.
    """

    mechanism: Annotated[str, wire(STRING, "0+")]


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """All enabled mechanisms, whether or not they include the requested one.

    Source: Kafka SaslHandshakeResponse.
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    mechanisms: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """The client's next token of the SASL mechanism chosen by SaslHandshake.

    Source: KIP-152; Kafka SaslAuthenticateRequest.
    """

    auth_bytes: Annotated[bytes, wire(BYTES, "0+", secret=True)]


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The server's next token; 1 adds the time until reauthentication (KIP-368).

    Source: Kafka SaslAuthenticateResponse.
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    auth_bytes: Annotated[bytes, wire(BYTES, "0+", secret=True)]
    session_lifetime_ms: Annotated[int, wire(INT64, "1+", ignorable=True)] = (
        0  # 0: no reauthentication needed
    )
