"""Lives of a dual writer: processes that can be killed at any step of the recipe."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
STUCK_S = 60


@dataclass(frozen=True)
class Strike:
    """A SIGKILL at the first step of this name, before or after it; none if the name is empty."""

    at: str = ""
    after: bool = False


@dataclass
class Life:
    """The output of a process.

    steps   names of the steps it began, in order; and those it finished
    found   of each recovery: the finding, and what was done
    killed  whether it killed itself at the strike
    """

    steps: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    found: list[tuple[str, str]] = field(default_factory=list)
    error: str = ""
    killed: bool = False


class Lives:
    """A process that forks lives, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.dual_write_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def live(
        self,
        place: Any,
        config: Mapping[str, object],
        *,
        pay: int | None = None,
        keyed: bool = False,
        recoveries: int = 1,
        strike: Strike | None = None,
        wait: str = "committed",
    ) -> Life:
        """Run a life: recover, then make payment number `pay`; it is killed at `strike` if it gets there.

        Args:
            wait: what a block waits for.
            keyed: the number is the idempotency key of its payment, and what the payment returns.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        strike = strike or Strike()
        told = {
            "place": asdict(place),
            "config": dict(config),
            "pay": pay,
            "keyed": keyed,
            "recoveries": recoveries,
            "strike": asdict(strike),
            "wait": wait,
        }
        print(json.dumps(told), file=self._process.stdin, flush=True)
        life = Life()
        for line in self._process.stdout:
            said = json.loads(line)
            match said:
                case {"began": name}:
                    life.steps.append(name)
                case {"did": name}:
                    life.done.append(name)
                case {"found": [finding, did]}:
                    life.found.append((finding, did))
                case {"error": text}:
                    life.error = text
                case {"ended": status}:
                    life.killed = status == -signal.SIGKILL
                    break
        assert not life.error, life.error
        assert life.killed is (strike.at in life.steps), f"killed where it was to be: {strike}"
        return life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STUCK_S)
        self._process.stdout.close()
