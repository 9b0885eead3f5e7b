"""What a person is told of a failed query: the error, not its way through Java."""

from tallystick.pipeline.progress import describe_failure

STATE = "\n=== Streaming Query ===\nIdentifier: p.all [id = 1]\nLogical Plan:\nWriteToMicroBatchDataSource"

# As Spark 4.3 wraps what a Python worker raised.
TRACEBACK = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback (most recent call last):
  File "worker.py", line 1, in main
    commit(messages)
tallystick.client.errors.TimedOut: the first one

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2, in main
tallystick.spark.protocol.errors.PrefixTaken: transactional.id.prefix 'p.all' was claimed by another query
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:599)
Caused by: java.lang.IllegalStateException: no"""


def test_a_value_that_does_not_fit_says_where_it_is_and_what_can_be_done() -> None:
    what = "source s: the value at in-0 offset 7 does not fit the schema: x"
    failure = describe_failure(f"[USER_RAISED_EXCEPTION] {what} SQLSTATE: P0001{STATE}")
    assert failure.cause == what
    assert 'malformed = "dead-letter"' in failure.advice


def test_our_own_error_is_told_in_its_words() -> None:
    failure = describe_failure(TRACEBACK + STATE)
    assert failure.cause == "transactional.id.prefix 'p.all' was claimed by another query"
    assert "one place only" in failure.advice
    assert "nothing is there twice" in failure.safety


def test_all_lines_of_an_error_are_told_and_no_frame() -> None:
    said = (
        "Traceback (most recent call last):\ntallystick.kernel.settings.BadConfig: a: wrong\nb: wrong\n"
        "\n\tat org.apache"
    )
    assert describe_failure(said).cause == "a: wrong\nb: wrong"


def test_others_errors_are_their_first_line() -> None:
    assert (
        describe_failure("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012" + STATE).cause
        == "Division by zero."
    )
    assert describe_failure("").cause == "it ended without a word"
