"""Log lines that tests look at have the same format, whatever ran before in the process."""

import logging

from pyspark.logger import PySparkLogger
from tests.support.plain_logs import keep_formats_of_handlers


def test_a_logger_of_pyspark_leaves_the_format_of_a_handler_alone() -> None:
    logger, handler, plain = PySparkLogger.getLogger(__name__), logging.NullHandler(), logging.Formatter()
    handler.setFormatter(plain)
    keep_formats_of_handlers()
    logger.addHandler(handler)
    try:
        assert handler.formatter is plain
    finally:
        logger.removeHandler(handler)
