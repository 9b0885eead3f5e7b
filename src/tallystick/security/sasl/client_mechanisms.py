"""The client side of a login, for each mechanism."""

from tallystick.kernel.secret import Secret
from tallystick.security.sasl.mechanism import SaslClient
from tallystick.security.sasl.oauthbearer import OAUTHBEARER, OauthBearerClient
from tallystick.security.sasl.plain import PLAIN, PlainClient
from tallystick.security.sasl.scram import SCRAM_MECHANISMS
from tallystick.security.sasl.scram_client import SaltedPasswords, ScramClient
from tallystick.security.sasl.settings import SaslLogin


def create_sasl_client(login: SaslLogin, cache: SaltedPasswords, token: Secret | None = None) -> SaslClient:
    """Return the client side of one login.

    Args:
        cache: salted passwords of this client's earlier logins.
        token: for OAUTHBEARER, the token to log in with.
    """
    if login.mechanism == OAUTHBEARER:
        return OauthBearerClient(token or Secret(""), dict(login.extensions))
    if login.mechanism == PLAIN:
        return PlainClient(login.username, login.password)
    return ScramClient(SCRAM_MECHANISMS[login.mechanism], login.username, login.password, cache)
