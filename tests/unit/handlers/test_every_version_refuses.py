"""Every API answers a sender without rights in every version, with or without a code for all of it."""

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop
from tools.hostile import make_small_request

from tallystick.broker.authorizer.authorizer import Operation, ResourceType
from tallystick.broker.handlers import HANDLERS
from tallystick.protocol.apis import ApiKey

# Requests of the login reach no handler before a login; after it they only end a session.
LOGIN = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
EVERYTHING = [(operation, resource_type) for operation in Operation for resource_type in ResourceType]
VERSIONS = [
    (key, version)
    for key in sorted(set(HANDLERS) - LOGIN)
    for version in range(HANDLERS[key].spec.min_version, HANDLERS[key].spec.max_version + 1)
]


@pytest.mark.gate(19)
@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda part: getattr(part, "name", str(part)))
@on_a_loop
async def test_a_sender_without_rights_has_an_answer_in_every_version(key: ApiKey, version: int) -> None:
    async with memory_broker() as memory:
        memory.deny(*EVERYTHING)
        request = make_small_request(HANDLERS[key].spec, version)
        assert isinstance(await memory.ask(request, version), HANDLERS[key].spec.response)
