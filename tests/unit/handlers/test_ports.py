"""What every handler is given: a narrow port with the authorizer in it, and the context of its request."""

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.broker import handlers
from tallystick.broker.broker import Broker
from tallystick.broker.handlers.cluster.api_versions import make_handler
from tallystick.broker.handlers.dispatch import RequestDispatcher, raw_entry
from tallystick.broker.handlers.ports import BrokerPorts, HasAuthorizer
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import Peer
from tallystick.protocol import encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.security.principals import ANONYMOUS, Principal


def _iter_modules() -> Iterator[ModuleType]:
    for found in walk_packages(handlers.__path__, f"{handlers.__name__}."):
        yield import_module(found.name)


def _iter_handlers() -> Iterator[Callable[..., Any]]:
    """Yield every function of a handler module that takes the broker and a request's context."""
    yield make_handler(())
    for module in _iter_modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                parameters = tuple(inspect.signature(function).parameters)
                if parameters[:1] == ("broker",) and "context" in parameters:
                    yield function


HANDLERS = {f"{each.__module__.rpartition('.')[2]}.{each.__name__}": each for each in _iter_handlers()}


def test_every_api_has_a_handler_here() -> None:
    assert len(HANDLERS) >= len(handlers.HANDLERS) - 1  # two APIs alter configs by one handler


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_every_handler_reaches_the_authorizer_and_the_context(name: str) -> None:
    hints = get_type_hints(HANDLERS[name])
    assert HasAuthorizer in hints["broker"].__mro__
    assert hints["broker"] is not BrokerPorts
    assert hints["context"] is RequestContext


def test_no_handler_module_holds_the_whole_broker() -> None:
    assert [module.__name__ for module in _iter_modules() if Broker in vars(module).values()] == []


def _receive_context(broker: Broker, peer: Peer) -> RequestContext:
    """Return the context that a handler gets for a Heartbeat of the peer."""
    contexts: list[RequestContext] = []

    def handle(broker: HasAuthorizer, body: memoryview, context: RequestContext) -> None:
        contexts.append(context)

    dispatcher = RequestDispatcher(broker, {ApiKey.HEARTBEAT: raw_entry(ApiKey.HEARTBEAT, handle)})
    header = RequestHeader(
        request_api_key=ApiKey.HEARTBEAT, request_api_version=3, correlation_id=7, client_id="orders"
    )
    dispatcher.dispatch(memoryview(encode(header, 1)), peer)
    return contexts[0]


@on_a_loop
async def test_a_request_is_anonymous_where_no_login_is_asked_for() -> None:
    async with memory_broker() as desk:
        context = _receive_context(desk.broker, Peer("10.0.0.1", 50_000, 1))
    assert context == RequestContext(
        ApiKey.HEARTBEAT, 3, 7, "orders", "10.0.0.1", 1, "PLAINTEXT", ANONYMOUS, 50_000
    )
    assert str(context.principal) == "User:ANONYMOUS"


@on_a_loop
async def test_a_request_has_the_principal_and_the_listener_of_its_connection() -> None:
    peer = Peer("10.0.0.1", 50_000, 1, "INTERNAL", Principal("alice"))
    async with memory_broker() as desk:
        context = _receive_context(desk.broker, peer)
    assert (context.listener, context.principal) == ("INTERNAL", Principal("alice"))
