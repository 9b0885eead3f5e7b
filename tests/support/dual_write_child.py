"""A server process that forks a process for every life, so that drivers are loaded once.

What a life loads or makes at first use, drivers and the codecs of messages, is loaded and made here as soon
as a life has named it, and all later ones have it.
This process never has a thread, connection or event loop of a life.

A life is a line of JSON on stdin. stdout gets the steps as they are taken, then what recovery found, then how
the process ended. `dual_write_lives.Lives` is the other end.
"""

import asyncio
import gc
import importlib
import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import Any

from tests.support import dual_write_stores as stores
from tests.support.dual_write_lives import STUCK_S, Strike
from tests.support.lake_effects import announce_effects
from tests.support.servers import do_without_tls

from tallystick.dualwrite import DualWriter, aio
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.protocol import compile as codecs


def _say(**what: object) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


class _Watch:
    """Prints each step, and ends the process with all its threads at the chosen one."""

    def __init__(self, strike: Strike) -> None:
        self._strike = strike

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        self.step(step.name, done)

    def step(self, name: str, done: bool) -> None:
        """Report a step of the recipe or of its user."""
        if done:
            _say(did=name)
        else:
            _say(began=name)
        if (name, done) == (self._strike.at, self._strike.after):
            os.kill(os.getpid(), signal.SIGKILL)


def _tell(report: Any) -> None:
    for each in report.ids:
        _say(found=[each.finding.name, each.action])


def _pay(place: Any, topic: str, watch: _Watch, txn: Any, number: int) -> int:
    watch.step("write rows", False)
    stores.write(place.kind, txn.database.handle, number)
    watch.step("write rows", True)
    delivery = txn.send(topic, str(number).encode())
    watch.step("flush", False)
    delivery.result(30)
    watch.step("flush", True)
    return number


async def _pay_async(place: Any, topic: str, watch: _Watch, txn: Any, number: int) -> int:
    watch.step("write rows", False)
    await stores.write(place.kind, txn.database.handle, number)
    watch.step("write rows", True)
    delivery = await txn.send(topic, str(number).encode())
    watch.step("flush", False)
    await delivery
    watch.step("flush", True)
    return number


def _live(place: Any, told: dict[str, Any], watch: _Watch) -> None:
    config, pay = told["config"], told["pay"]
    topic = str(config.pop("topic", config["transactional.id"]))
    with stores.opened(place) as store, DualWriter(store, config, wait=told["wait"], watch=watch) as writer:
        for _ in range(told["recoveries"]):
            _tell(writer.recover())
        if told["keyed"]:
            paying = writer.transactional(idempotency_key=lambda number: str(number), scope=topic)
            assert paying(lambda txn, number: _pay(place, topic, watch, txn, number))(pay) == pay
        elif pay is not None:
            with writer.transaction() as txn:
                _pay(place, topic, watch, txn, pay)


async def _live_async(place: Any, told: dict[str, Any], watch: _Watch) -> None:
    config, pay = told["config"], told["pay"]
    topic = str(config.pop("topic", config["transactional.id"]))
    async with (
        stores.opened_async(place) as store,
        aio.DualWriter(store, config, wait=told["wait"], watch=watch) as writer,
    ):
        for _ in range(told["recoveries"]):
            _tell(await writer.recover())
        if told["keyed"]:
            paying = writer.transactional(idempotency_key=lambda number: str(number), scope=topic)
            assert await paying(lambda txn, number: _pay_async(place, topic, watch, txn, number))(pay) == pay
        elif pay is not None:
            async with writer.transaction() as txn:
                await _pay_async(place, topic, watch, txn, pay)


def _begin(told: dict[str, Any]) -> None:
    place = stores.Place(**told["place"])
    watch = _Watch(Strike(**told["strike"]))
    if place.kind in stores.LAKE:
        announce_effects(watch.step)
    if place.is_async:
        asyncio.run(_live_async(place, told, watch))
    else:
        _live(place, told, watch)


def _teach(pipe: int, known: set[str]) -> None:
    """Send what this life loaded and made; it was forked before."""
    modules = [name for name in sys.modules if name not in known]
    with open(pipe, "wb") as taught:
        pickle.dump((modules, list(codecs._ENCODERS), list(codecs._DECODERS)), taught)


def _learn(pipe: int) -> None:
    """Load and make the same for all later lives. A killed life sends nothing."""
    with open(pipe, "rb") as said:
        told = said.read()
    modules, encoders, decoders = pickle.loads(told) if told else ((), (), ())
    for name in modules:
        with suppress(ImportError):  # a name that is no module's: an attribute that was put in their place
            importlib.import_module(name)
    for cls, version in encoders:
        codecs.get_encoder(cls, version)
    for cls, version in decoders:
        codecs.get_decoder(cls, version)
    gc.freeze()


def main() -> None:
    do_without_tls()
    gc.freeze()  # keep the lives' garbage collectors away from the pages they share with this process
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(STUCK_S)
            known = set(sys.modules)
            try:
                _begin(json.loads(line))
                _teach(writing, known)
            except BaseException as exc:
                _say(error=f"{exc!r} {getattr(exc, '__notes__', '')}")
            finally:
                os._exit(0)
        os.close(writing)
        _learn(reading)
        _, status = os.waitpid(child, 0)
        _say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
