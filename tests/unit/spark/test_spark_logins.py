"""A login that stands in a URL is in no text: messages, logs, tracebacks, reprs of what Spark pickles."""

import traceback
from collections.abc import Callable

import pytest

from tallystick.client.settings.config import Address
from tallystick.kernel.secret import hide_logins
from tallystick.lake.errors import LakeError
from tallystick.lake.names import parse_table_url
from tallystick.lake.storage import open_storage
from tallystick.pipeline.definition import TableSink
from tallystick.spark import foreach_batch, to_table

PLANTED = "PLANTED"
DATABASE = f"postgresql://me:{PLANTED}@host/d"


def make_foreach_batch(database: str) -> object:
    options = {"kafka.bootstrap.servers": "h:1", "transactional.id.prefix": "p"}
    return foreach_batch(options, to_table("t"), database=database)


def resolve_database(url: str) -> object:
    pytest.importorskip("sqlalchemy", reason="needs the extra sql")
    from tallystick.spark.decisions.database import resolve_database as resolve

    return resolve(url)


def open_object_storage(**options: str) -> object:
    pytest.importorskip("obstore", reason="needs the extra delta")
    return open_storage(parse_table_url("delta:s3://bucket/t"), options)


def raise_lake_error(text: str) -> object:
    raise LakeError(text)


@pytest.mark.parametrize(
    "act",
    [
        lambda: make_foreach_batch(DATABASE),
        lambda: TableSink(table="t", database=DATABASE),
        lambda: resolve_database(DATABASE),
        lambda: resolve_database(f"postgresql://me:{PLANTED}@host:port/d"),
        lambda: resolve_database(f"me:{PLANTED}@host"),
        lambda: resolve_database(f"oracle://me:{PLANTED}@host/d"),
        lambda: Address.parse(f"me:{PLANTED}@host:9092"),
        lambda: Address.parse(f"PLAINTEXT://me:{PLANTED}@host:9092"),
        lambda: open_object_storage(AWS_ALLOW_HTTP=PLANTED),
        lambda: open_object_storage(AWS_VIRTUAL_HOSTED_STYLE_REQUEST=PLANTED),
        lambda: open_object_storage(proxy_url=f"http://me:{PLANTED}@host:port"),
        lambda: raise_lake_error(f"table: http://me:{PLANTED}@host/t"),
    ],
)
def test_what_is_planted_in_a_url_is_shown_nowhere(act: Callable[[], object]) -> None:
    try:
        shown = repr(act())
    except Exception as exc:
        shown = "".join(traceback.format_exception(exc, limit=0)) + str(exc) + repr(exc)
    assert PLANTED not in shown, hide_logins(shown)
