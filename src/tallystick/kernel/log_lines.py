"""Lines of a server's log: text for people, JSON for collectors; times are in UTC and say so.

ISO 8601 with Z, as histories, the console and the command line write them: a log in local time cannot be put
beside that of another machine, and repeats an hour every autumn.
"""

import json
import logging
import time
from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
DEFAULT_LEVEL: Final = "info"
DEFAULT_FORMAT: Final = "text"


class TextFormatter(logging.Formatter):
    """Time, level, logger and message in one line; an exception's traceback in those below it."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime


class JsonFormatter(TextFormatter):
    """One object a line: time, level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in ASCII: what reads it need not guess an encoding."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        traces = [self.formatException(record.exc_info)] if record.exc_info else []
        traces += [record.stack_info] if record.stack_info else []
        if traces:
            fields["exception"] = "\n".join(traces)
        return json.dumps(fields)


def start_log(level: str, log_format: str) -> None:
    """Write the log of this process to standard error, where nothing else has taken charge of it.

    A second call replaces the first one.

    Args:
        level: of LOG_LEVELS; any other is the default, for a caller that has yet to refuse it.
        log_format: likewise of LOG_FORMATS. With `json`, Python's own warnings are part of the log.
    """
    is_json, root = log_format == "json", logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each.formatter, TextFormatter)]:
        root.removeHandler(former)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(is_json)
    set_log_level(level if level in LOG_LEVELS else DEFAULT_LEVEL)


def set_log_level(level: str) -> None:
    """Log what is at least as grave as a level of LOG_LEVELS."""
    logging.getLogger().setLevel(level.upper())
