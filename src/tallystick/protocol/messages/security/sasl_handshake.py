"""SaslHandshake (17): choose a SASL mechanism."""

from typing import Annotated

from tallystick.protocol.wire import INT16, STRING, array, message, wire


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
