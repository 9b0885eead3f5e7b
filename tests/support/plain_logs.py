"""Captured log lines stay plain text, whatever PySpark did earlier in the process."""

import logging
from types import MethodType


def keep_formats_of_handlers() -> None:
    """Let PySpark's loggers take a handler without giving it their JSON format.

    Some of them do not propagate. pytest adds its own handlers to such loggers at each later test of the
    process, so which format a test sees would depend on the tests that ran before it.
    """
    for logger in list(logging.Logger.manager.loggerDict.values()):
        if type(logger).__name__ == "PySparkLogger" and "addHandler" not in vars(logger):
            vars(logger)["addHandler"] = MethodType(logging.Logger.addHandler, logger)
