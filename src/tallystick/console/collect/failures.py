"""Sentences for what could not be read. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tallystick._lazy import MissingLibrary
from tallystick.client.errors import (
    AuthenticationFailed,
    BadAnswer,
    BrokerRefused,
    ClientError,
    NotSupported,
)
from tallystick.kernel.errors import TallystickError

SENTENCES_MAX: Final = 20

REFUSALS: Final = (AuthenticationFailed, BadAnswer, BrokerRefused, NotSupported)
"""Errors that come with an answer: the other side is there."""


def describe_failure(exc: BaseException) -> str:
    """Describe an error in one line: without the effect on data, because nothing was written, or SQL text."""
    if isinstance(exc, ClientError):
        text = exc.what()
    elif isinstance(exc, TallystickError | MissingLibrary):
        text = str(exc)
    else:
        cause = getattr(exc, "orig", None) or exc
        text = f"{type(cause).__name__}: {cause}"
    return " ".join(text.split())


def describe_failures(failures: Mapping[str, ClientError]) -> tuple[str, ...]:
    """Describe failures by what they concern; those that say the same thing are said once."""
    subjects: dict[str, list[str]] = {}
    for subject, failure in failures.items():
        subjects.setdefault(_describe_kind(failure, subject), []).append(subject)
    return limit_sentences(_describe_some(failures[some[0]], some) for some in subjects.values())


def limit_sentences(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the first sentences, and how many more there are."""
    some = tuple(sentences)
    if len(some) <= SENTENCES_MAX:
        return some
    return (*some[:SENTENCES_MAX], f"and {len(some) - SENTENCES_MAX} more")


def _describe_some(failure: ClientError, subjects: Sequence[str]) -> str:
    """Describe the failure of the first subject, and say how many others are like it."""
    text = describe_failure(failure)
    if subjects[0] not in text:
        text = f"{subjects[0]}: {text}"
    return text if len(subjects) == 1 else f"{text}; {len(subjects) - 1} others too"


def _describe_kind(failure: ClientError, subject: str) -> str:
    """Describe a failure so that two failures of one kind have the same text."""
    return describe_failure(failure).replace(subject, "")
