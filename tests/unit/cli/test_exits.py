"""How a command ends that was interrupted, or has failed for some of its subjects."""

import gc
import signal
import warnings

import pytest

from tallystick.cli.exits import ExitCode, interruptible, print_failure


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


@pytest.mark.parametrize("text", ["the rows are gone", "pay-1: the rows are gone"])
def test_a_failure_names_its_subject_once(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_failure("pay-1", text, ExitCode.INCOMPLETE) is ExitCode.INCOMPLETE
    assert capsys.readouterr().err == "tallystick: pay-1: the rows are gone\n"
    print_failure("pay-1", "EndTxn 'pay-1': gone", ExitCode.FAILED)
    assert capsys.readouterr().err == "tallystick: EndTxn 'pay-1': gone\n"
