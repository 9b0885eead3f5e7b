"""Messages with secrets print without them: they are logged for debugging (CVE-2026-33558)."""

import pytest

from tallystick.protocol import decode, encode
from tallystick.protocol.messages.cluster.alter_configs import AlterableConfig as OldAlterableConfig
from tallystick.protocol.messages.cluster.incremental_alter_configs import AlterableConfig
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from tallystick.protocol.messages.security.scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)

SECRET = "hunter2"
UPSERTION = ScramCredentialUpsertion(
    name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=SECRET.encode()
)


@pytest.mark.parametrize(
    "value",
    [
        SaslAuthenticateRequest(auth_bytes=SECRET.encode()),
        SaslAuthenticateResponse(auth_bytes=SECRET.encode()),
        AlterUserScramCredentialsRequest(upsertions=(UPSERTION,)),
        AlterableConfig(name="ssl.key.password", config_operation=0, value=SECRET),
        OldAlterableConfig(name="ssl.key.password", value=SECRET),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_message_prints_a_secret(value: object) -> None:
    for shown in (repr(value), str(value), f"{value}", repr([value])):
        assert SECRET not in shown
        assert "[hidden]" in shown


def test_what_is_not_printed_is_sent() -> None:
    request = SaslAuthenticateRequest(auth_bytes=SECRET.encode())
    assert decode(SaslAuthenticateRequest, encode(request, 2), 2) == request
