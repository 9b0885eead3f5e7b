"""What `tallystick run` leaves on the terminal of what PySpark logs, and what goes into its file."""

import json
import logging
from pathlib import Path

import pytest

from tallystick.cli.commands.run import _QUERY_LOGGERS, _redirect_output

spark_log = pytest.importorskip("pyspark.logger")


@pytest.mark.parametrize("name", _QUERY_LOGGERS)
@pytest.mark.parametrize("made_before", [False, True])
def test_an_error_in_a_query_is_in_the_log_and_not_on_the_terminal(
    name: str, *, made_before: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """PySpark writes it as an object of JSON, before the command says it in words."""
    forget_loggers()
    if made_before:
        spark_log.PySparkLogger.getLogger(name)
    log = tmp_path / "tallystick.log"
    with _redirect_output(log):
        logger = spark_log.PySparkLogger.getLogger(name)
        logger.propagate = False
        logger.error("the column is missing", errorClass="UNRESOLVED_COLUMN")
    assert "the column is missing" not in "".join(capfd.readouterr())
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("{")]
    assert json.loads(line)["context"] == {"errorClass": "UNRESOLVED_COLUMN"}
    logger.error("said afterwards")
    assert "said afterwards" in capfd.readouterr().err
    forget_loggers()


def forget_loggers() -> None:
    """Forget all of them: a handler keeps the stream that was standard error when it was made."""
    for name in _QUERY_LOGGERS:
        logging.Logger.manager.loggerDict.pop(name, None)
