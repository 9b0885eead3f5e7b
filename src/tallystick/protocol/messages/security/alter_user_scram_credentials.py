"""AlterUserScramCredentials (51): set or remove SCRAM credentials."""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class ScramCredentialDeletion:
    name: Annotated[str, wire(STRING, "0+")]
    mechanism: Annotated[int, wire(INT8, "0+")]  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


@struct
class ScramCredentialUpsertion:
    name: Annotated[str, wire(STRING, "0+")]
    mechanism: Annotated[int, wire(INT8, "0+")]
    iterations: Annotated[int, wire(INT32, "0+")]
    salt: Annotated[bytes, wire(BYTES, "0+")]
    salted_password: Annotated[bytes, wire(BYTES, "0+", secret=True)]


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Credentials to remove and to set; the client salts, so the broker never sees a password.

    Source: KIP-554; Kafka AlterUserScramCredentialsRequest.
    """

    deletions: Annotated[tuple[ScramCredentialDeletion, ...], wire(array(ScramCredentialDeletion), "0+")] = ()
    upsertions: Annotated[
        tuple[ScramCredentialUpsertion, ...], wire(array(ScramCredentialUpsertion), "0+")
    ] = ()


@struct
class AlterUserScramCredentialsResult:
    user: Annotated[str, wire(STRING, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """One result per user.

    Source: Kafka AlterUserScramCredentialsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    results: Annotated[
        tuple[AlterUserScramCredentialsResult, ...], wire(array(AlterUserScramCredentialsResult), "0+")
    ] = ()
