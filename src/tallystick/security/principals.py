"""Principals: who the sender of a request is, as ACLs, quotas and the audit log name it.

A principal has a type and a name, written `User:alice`. Every connection has one: the name that it logged in
under, its certificate's, or ANONYMOUS.

Source: Kafka KafkaPrincipal.
"""

from typing import Final

from tallystick.kernel.value import Value

USER_TYPE: Final = "User"


class Principal(Value):
    """The authenticated identity of a client; its string is the form that ACLs are written in."""

    name: str
    type: str = USER_TYPE

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# The sender of a request on a connection that asks for no authentication.
ANONYMOUS: Final = Principal("ANONYMOUS")
