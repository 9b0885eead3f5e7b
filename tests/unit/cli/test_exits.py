"""How an interrupted command ends."""

import gc
import signal
import warnings

import pytest

from tallystick.cli.exits import interruptible


async def poll() -> None:
    """Stand for a call that the interrupt comes before."""


def be_interrupted_before_a_call() -> None:
    call = poll()
    signal.raise_signal(signal.SIGTERM)
    call.close()


def test_an_interrupt_between_the_making_of_a_call_and_its_start_prints_no_warning() -> None:
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt), interruptible():
            be_interrupted_before_a_call()
        gc.collect()
    assert printed == []
