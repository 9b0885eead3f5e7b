"""Users of SCRAM who are in no store, for servers that are tested alone."""

from collections.abc import Callable, Mapping

from tallystick.security.sasl.scram import ScramCredential, ScramMechanism
from tallystick.security.sasl.scram_decoys import FoundCredential, find_or_invent

Lookup = Callable[[str], ScramCredential | None]


def find_in(
    users: Mapping[str, ScramCredential] | Lookup, mechanism: ScramMechanism
) -> Callable[[str], FoundCredential]:
    """Return what a ScramServer asks for a user's credential."""
    look_up: Lookup = users.get if isinstance(users, Mapping) else users
    return lambda user: find_or_invent(mechanism, user, look_up(user), b"dummy")
