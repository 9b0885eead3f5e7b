"""Stores by URL. Nothing is created: a mistyped URL must not become an empty database.

postgresql+psycopg://me@host/shop   SQLAlchemy's URL; Django's rows are in the same table
rocksdb:///var/lib/shop             the folder of a database, which no process may have open
zookeeper://one:2181,two:2181/shop  hosts, and the root of the client; before them user:password@ for
                                    digest authentication, after them ?path= if the store has its own
delta:/lake/payments                the folder of a Delta table
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import SplitResult, parse_qs, parse_qsl, unquote, urlencode, urlsplit

from tallystick import _lazy, dualwrite
from tallystick.dualwrite.errors import BadStore
from tallystick.dualwrite.stores.base import Store
from tallystick.dualwrite.stores.dialects import IS_REPLICA_SQL
from tallystick.kernel.ids import is_table_url
from tallystick.kernel.settings import BadConfig

CONNECT_TIMEOUT_S: Final = 15.0
"""Timeout of the first connection; kazoo's default."""

# kazoo logs each attempt to connect; only the final error matters here.
_KAZOO_LOG: Final = logging.getLogger("tallystick.dualwrite.zookeeper")
_KAZOO_LOG.addHandler(logging.NullHandler())


OTHER_KINDS: Final = ("rocksdb", "zookeeper", "delta")
"""Schemes of URLs that are not SQLAlchemy's."""

_SECRET_WORDS: Final = ("password", "passwd", "pwd", "secret", "token")


def describe_url(url: str) -> str:
    """Return a URL without its password, to name the store by."""
    if is_table_url(url):
        kind, _, place = url.partition(":")
        return f"{kind}:{describe_url(place) if '://' in place else place}"
    if "://" not in url:
        return "(not a URL)"
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return f"{url.partition('://')[0]}://(not a URL)"
    credentials, at, hosts = parts.netloc.rpartition("@")
    parameters = [
        (name, value) for name, value in query if not any(word in name.lower() for word in _SECRET_WORDS)
    ]
    user = credentials.partition(":")[0]
    text = f"{parts.scheme}://{user}{at}{hosts}{parts.path}"
    return f"{text}?{urlencode(parameters, safe='/:,')}" if parameters else text


@contextmanager
def open_store(url: str, schema: str | None = None, allowed: Collection[str] = ()) -> Iterator[Store[Any]]:
    """Open the store of a URL.

    Args: allowed: as `allow_unsafe_durability` of SqlStore.

    Raises: BadConfig for an invalid URL or a missing library; BadStore if the store cannot be opened.
    """
    if not url.strip():
        raise BadConfig("the URL of the store is empty")
    opener = {"rocksdb": _open_rocksdb, "zookeeper": _open_zookeeper}.get(url.partition(":")[0])
    if opener is None and not is_table_url(url):
        with _open_sql(url, schema, allowed) as sql:
            yield sql
        return
    if schema is not None or allowed:
        raise BadConfig("a schema, and settings of durability, are for SQL databases alone")
    if opener is None:
        with _open_lake(url) as lake:
            yield lake
        return
    with opener(urlsplit(url)) as store:
        yield store


@contextmanager
def _open_sql(url: str, schema: str | None, allowed: Collection[str]) -> Iterator[Store[Any]]:
    create_engine = _lazy.load("sqlalchemy").create_engine
    if ":" not in url:
        raise BadConfig(f"{url} is not a URL; a file of SQLite is sqlite:///{url}")
    try:
        with _lazy.naming_drivers():
            engine = create_engine(url)
        _check_sqlite_file(engine.url)
        refuse_replicas(engine)
    except BadStore:
        raise
    except _lazy.MissingLibrary as exc:
        raise BadConfig(str(exc)) from exc
    except Exception as exc:  # of SQLAlchemy or the driver; its text may contain the URL's password
        if type(exc).__name__ == "NoSuchModuleError":
            raise BadConfig(f"{url.partition(':')[0]}: is no kind of database that is known here") from exc
        text = " ".join(str(exc).replace(url, "the URL").split())
        raise BadConfig(f"{type(exc).__name__}: {text}") from exc
    try:
        yield _create_sql_store(engine, schema, allowed)
    finally:
        engine.dispose()


def refuse_replicas(engine: Any) -> None:
    """Let an engine of SQLAlchemy connect to primaries alone, where every committed decision is to be seen.

    Raises: BadStore, for each new connection to another server.
    """
    query = IS_REPLICA_SQL.get(engine.dialect.name)

    def check_server(driver: Any, _: object) -> None:
        cursor = driver.cursor()
        cursor.execute(query)
        (answer,) = cursor.fetchone()
        cursor.close()
        driver.rollback()
        if str(answer).lower() not in ("0", "off", "false"):
            raise BadStore(
                "the database is a replica, or may only be read: a decision may be missing there. "
                "Give the address of the primary; nothing was read"
            )

    if query is not None:
        _lazy.load("sqlalchemy").event.listen(engine, "connect", check_server)


def _check_sqlite_file(url: Any) -> None:
    """Raise BadStore for an SQLite database that is not there: to connect to it would create the file."""
    place = url.database
    if url.get_backend_name() == "sqlite" and place and place != ":memory:" and not place.startswith("file:"):
        file = Path(place).absolute()
        if not file.is_file():
            raise BadStore(f"{file} is not a file on this host, and is not created. Nothing was read")


def _create_sql_store(engine: Any, schema: str | None, allowed: Collection[str]) -> Store[Any]:
    try:
        return dualwrite.SqlStore(engine, schema=schema, allow_unsafe_durability=cast(Any, allowed))
    except ValueError as exc:
        raise BadConfig(str(exc)) from exc


def find_rocksdb_folder(url: str) -> Path:
    """Return the folder of a RocksDB database. Raises: BadConfig; BadStore if there is no database."""
    return _check_folder(urlsplit(url))


def _check_folder(url: SplitResult) -> Path:
    folder = Path(unquote(url.path))
    if url.netloc or url.query or not folder.is_absolute():
        raise BadConfig("must be rocksdb:/// followed by the folder of the database")
    if not (folder / "CURRENT").is_file():
        raise BadStore(f"{folder} is not a RocksDB database")
    return folder


@contextmanager
def _open_rocksdb(url: SplitResult) -> Iterator[Store[Any]]:
    folder = _check_folder(url)
    open_database = _lazy.load("rocksdict").Rdict
    try:
        database = open_database(str(folder))
    except Exception as exc:  # rocksdict has no classes for these
        if any(text in str(exc) for text in ("While lock file", "lock hold by")):
            raise BadStore(
                f"{folder} is open in a live process, and RocksDB allows one at a time. Nothing "
                "was read. That process finishes its ids itself when it recovers; otherwise stop it and "
                "try again"
            ) from exc
        raise BadStore(f"{folder} cannot be opened: {exc}") from exc
    with closing(database), closing(dualwrite.RocksStore(database)) as opened:
        yield opened


@contextmanager
def _open_lake(url: str) -> Iterator[Store[Any]]:
    store = dualwrite.DeltaStore(url)
    store.create()  # only looks whether the table is there
    yield store


@contextmanager
def _open_zookeeper(url: SplitResult) -> Iterator[Store[Any]]:
    credentials, _, hosts = url.netloc.rpartition("@")
    parameters = parse_qs(url.query)
    if not hosts or parameters.keys() - {"path"}:
        raise BadConfig("must be zookeeper://HOST:PORT,HOST:PORT/ROOT, with ?path=PATH if the store has one")
    kazoo = _lazy.load("kazoo.client").KazooClient
    digest = [("digest", unquote(credentials))] if credentials else None
    try:
        client = kazoo(hosts + url.path.rstrip("/"), auth_data=digest, logger=_KAZOO_LOG)
    except ValueError as exc:
        raise BadConfig(f"zookeeper://: {exc}") from exc
    try:
        client.start(CONNECT_TIMEOUT_S)
    except Exception as exc:  # of kazoo's handler, which the client chooses
        client.close()
        raise BadStore(f"none of the ZooKeeper servers {hosts} answers: {type(exc).__name__}: {exc}") from exc
    try:
        yield dualwrite.ZooKeeperStore(client, *parameters.get("path", [])[-1:])
    finally:
        client.stop()
        client.close()
