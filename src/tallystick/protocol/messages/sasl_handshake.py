"""SaslHandshake (17): choose how to log in."""

from typing import Annotated

from tallystick.protocol.wire import INT16, STRING, array, message, wire


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest:
    """Name a SASL mechanism; from version 1 on SaslAuthenticate carries what follows (KIP-152).

    Source: Kafka SaslHandshakeRequest.
    """

    mechanism: Annotated[str, wire(STRING, "0+")]


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """All mechanisms on offer, whether or not the chosen one is among them.

    Source: Kafka SaslHandshakeResponse.
    """

    error_code: Annotated[int, wire(INT16, "0+")] = 0
    mechanisms: Annotated[tuple[str, ...], wire(array(STRING), "0+")] = ()
