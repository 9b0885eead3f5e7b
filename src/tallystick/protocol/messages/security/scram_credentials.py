"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51) (KIP-554)."""

from typing import Annotated

from tallystick.protocol.wire import BYTES, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class UserName:
    name: Annotated[str, wire(STRING, "0+")]


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """Users to describe; none (null or empty) means all.

    Source: KIP-554; Kafka DescribeUserScramCredentialsRequest.
    """

    users: Annotated[tuple[UserName, ...] | None, wire(array(UserName), "0+", nullable="0+")]


@struct
class CredentialInfo:
    mechanism: Annotated[int, wire(INT8, "0+")]  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: Annotated[int, wire(INT32, "0+")]


@struct
class DescribeUserScramCredentialsResult:
    user: Annotated[str, wire(STRING, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    credential_infos: Annotated[tuple[CredentialInfo, ...], wire(array(CredentialInfo), "0+")] = ()


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations per user; never salts or passwords.

    Source: Kafka DescribeUserScramCredentialsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    results: Annotated[
        tuple[DescribeUserScramCredentialsResult, ...], wire(array(DescribeUserScramCredentialsResult), "0+")
    ] = ()


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
