"""Advice on a session's settings that slow down every micro-batch, logged once a process."""

import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("tallystick.spark")

UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_UNIX_SOCKETS_ENV: Final = "PYSPARK_UDS_MODE"
"""Spark takes the default of the setting from this variable (core/internal/config/Python.scala)."""

_advice_texts: set[str] = set()


def find_slow_sockets(
    setting: str | None, environment: Mapping[str, str], *, has_unix_sockets: bool
) -> str | None:
    """Return advice if rows go to Python workers over TCP and need not; else None. Pure.

    Args:
        setting: the session's value of `UNIX_SOCKETS`; None if it is not set.
    """
    value = setting if setting is not None else environment.get(_UNIX_SOCKETS_ENV, "false")
    if not has_unix_sockets or value.strip().lower() == "true":
        return None
    return (
        "rows reach Python workers over TCP, which takes 50 to 60 ms more in each micro-batch than local "
        f"sockets do. Set {UNIX_SOCKETS}=true when the session is started, for example "
        f'SparkSession.builder.config("{UNIX_SOCKETS}", "true"), or spark-submit --conf {UNIX_SOCKETS}=true'
    )


def advise(spark: "SparkSession") -> None:
    """Log what slows this session down, unless this process has said so before."""
    try:
        setting = spark.conf.get(UNIX_SOCKETS, None)
    except PySparkException as exc:  # a server of Spark Connect may not tell
        _log.debug("%s cannot be read: %s", UNIX_SOCKETS, exc)
        return
    advice = find_slow_sockets(setting, os.environ, has_unix_sockets=hasattr(socket, "AF_UNIX"))
    if advice is not None and advice not in _advice_texts:
        _advice_texts.add(advice)
        _log.warning("%s", advice)
