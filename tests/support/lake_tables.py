"""One table of each lake format, as the tests of the contract need it: the adapter's own side, and others'.

Every format has the same methods, so a test of what `tallystick.lake.ports` promises is written once.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa
import pytest

from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.names import parse_table_url
from tallystick.lake.ports import DataFile, LakeTable
from tallystick.lake.storage import Storage, open_storage

PREFIX: Final = "p/database"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])


def make_rows(ids: Sequence[int], name: str = "row") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [f"{name} {n}" for n in ids]})


class DeltaPlace:
    """A Delta table in a folder."""

    format: ClassVar = "delta"
    lost_text: ClassVar = "has what was decided last"

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        self.folder = folder / "table"
        self._create(str(folder), {}, schema)

    def _create(self, base: str, options: dict[str, str], schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self.options = options
        self.url = f"delta:{base}/table"
        self.missing_url = f"delta:{base}/nothing"
        DeltaTable.create(f"{base}/table", schema=schema, storage_options=options)

    @property
    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.url.removeprefix("delta:"), storage_options=self.options)

    def open(self, url: str = "") -> LakeTable:
        """Return the table as another process would open it."""
        from tallystick.lake.delta import DeltaLakeTable

        return DeltaLakeTable(parse_table_url(url or self.url), self.options)

    @property
    def storage(self) -> Storage:
        return open_storage(parse_table_url(self.url), self.options)

    def open_writer(self, owner: ProducerIdAndEpoch, attempt: str) -> DataFileWriter:
        name = AttemptName(key=PREFIX, owner=str(owner), attempt=attempt)
        return DataFileWriter(self.storage, self.open().read_definition(), name)

    def remove_file(self, path: str) -> None:
        self.storage.try_remove(path)

    def has_file(self, path: str) -> bool:
        return self.storage.size(path) is not None

    def read(self) -> pa.Table:
        return pa.table(self.table.scan().read_all())

    # ---- other writers

    def append(self, ids: Sequence[int]) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.table, pa.table(make_rows(ids, "other")), mode="append")

    def compact(self) -> None:
        self.table.optimize.compact()
        self.table.create_checkpoint()

    def tidy(self) -> None:
        """Remove the files that no version needs."""
        self.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def add_column(self) -> None:
        from deltalake import Field

        self.table.alter.add_columns([Field("more", "string")])

    def lose_entry(self) -> None:
        """Clean the log up, so that the last decision is not in it."""
        self.append([100])
        self.table.create_checkpoint()
        for entry in sorted(path for path in self.storage.list("_delta_log") if path.endswith(".json"))[:-1]:
            self.storage.try_remove(entry)

    # ---- answers

    @contextmanager
    def failing(self, *, commits: bool) -> Iterator[None]:
        """Let each commit of the library fail: after it is made, or before."""
        from deltalake import DeltaTable

        real = DeltaTable.create_write_transaction

        def fails(self: DeltaTable, *args: Any, **options: Any) -> None:
            if commits:
                real(self, *args, **options)
            raise OSError("the answer is lost")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", fails)
            yield


class DeltaS3Place(DeltaPlace):
    """A Delta table in an object store."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        from tests.support.object_store import get_object_store

        self.store = get_object_store()
        self._create(f"s3://{self.store.create_bucket()}/lake", self.store.options, schema)


class IcebergPlace:
    """An Iceberg table of a catalog in SQLite, in a folder."""

    format: ClassVar = "iceberg"
    lost_text: ClassVar = "was removed or moved"

    def __init__(self, folder: Path, schema: Any = SCHEMA, **options: Any) -> None:
        from pyiceberg.catalog import load_catalog

        self.folder = folder
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": f"file://{folder}",
            **self._choose_storage(),
        }
        self.catalog = load_catalog("lake", **self.properties)
        self.catalog.create_namespace_if_not_exists("flights")
        self.catalog.create_table("flights.rows", schema=schema, **options)
        self.url = "iceberg:lake.flights.rows"
        self.missing_url = "iceberg:lake.flights.nothing"

    def _choose_storage(self) -> dict[str, str]:
        """Return the properties of the catalog that say where its files are, if not in the folder."""
        return {}

    @property
    def table(self) -> Any:
        return self.catalog.load_table("flights.rows")

    def open(self, url: str = "") -> LakeTable:
        """Return the table as another process would open it."""
        from tallystick.lake.iceberg import IcebergLakeTable

        return IcebergLakeTable(parse_table_url(url or self.url), self.properties)

    def open_writer(self, owner: ProducerIdAndEpoch, attempt: str) -> DataFileWriter:
        from tallystick.lake.iceberg_files import IcebergFileWriter

        name = AttemptName(key=PREFIX, owner=str(owner), attempt=attempt)
        return IcebergFileWriter(self.open().read_definition(), name)

    def find_file(self, path: str) -> Path:
        return self.folder / "flights" / "rows" / "data" / path

    def remove_file(self, path: str) -> None:
        self.find_file(path).unlink()

    def has_file(self, path: str) -> bool:
        return self.find_file(path).exists()

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()

    # ---- other writers

    def append(self, ids: Sequence[int]) -> None:
        self.table.append(pa.table(make_rows(ids, "other")))

    def append_nothing(self) -> None:
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass

    def compact(self) -> None:
        """Replace all files by new ones, as a rewriting of data files does."""
        table = self.table
        table.overwrite(table.scan().to_arrow())

    def tidy(self) -> None:
        """Expire every snapshot that no branch and no tag has."""
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        self.table.maintenance.expire_snapshots().older_than(later).commit()

    def add_column(self) -> None:
        from pyiceberg.types import StringType

        with self.table.update_schema() as update:
            update.add_column("more", StringType())

    def lose_entry(self) -> None:
        """Remove the tag, and what it has kept."""
        self.table.manage_snapshots().remove_tag(f"tallystick:{PREFIX}").commit()
        self.tidy()

    # ---- answers

    @contextmanager
    def failing(self, *, commits: bool) -> Iterator[None]:
        """Let each commit of the catalog fail: after it is made, or before."""
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import CommitStateUnknownException

        real = SqlCatalog.commit_table

        def fails(self: SqlCatalog, *args: Any) -> Any:
            if commits:
                real(self, *args)
            raise CommitStateUnknownException("the answer is lost")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", fails)
            yield


AnIcebergPlace = TypeVar("AnIcebergPlace", bound=IcebergPlace)


class IcebergS3Place(IcebergPlace):
    """An Iceberg table in an object store."""

    def _choose_storage(self) -> dict[str, str]:
        from tests.support.object_store import get_object_store

        store = get_object_store()
        return {
            "warehouse": f"s3://{store.create_bucket()}/lake",
            "s3.endpoint": store.url,
            "s3.region": store.options["AWS_REGION"],
            "s3.access-key-id": store.options["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": store.options["AWS_SECRET_ACCESS_KEY"],
        }

    @property
    def storage(self) -> Storage:
        from tallystick.lake.iceberg_storage import open_files

        return open_files(str(self.table.location_provider().data_path), self.table.io)

    def remove_file(self, path: str) -> None:
        self.storage.try_remove(path)

    def has_file(self, path: str) -> bool:
        return self.storage.size(path) is not None


def create_bucketed(folder: Path, kind: type[AnIcebergPlace] = IcebergPlace) -> AnIcebergPlace:
    """Create a table of texts and batches, in two buckets of the texts."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import IntegerType, NestedField, StringType

    schema = Schema(NestedField(1, "id", StringType()), NestedField(2, "batch", IntegerType()))
    buckets = PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket"))
    return kind(folder, schema, partition_spec=buckets)


Place = DeltaPlace | IcebergPlace
PLACES: Final[dict[str, type[Place]]] = {
    "delta": DeltaPlace,
    "delta-s3": DeltaS3Place,
    "iceberg": IcebergPlace,
    "iceberg-s3": IcebergS3Place,
}


def write_files(
    place: Place, owner: ProducerIdAndEpoch, ids: Sequence[int], attempt: str = "aa"
) -> list[DataFile]:
    """Write the data files of one attempt."""
    writer = place.open_writer(owner, attempt)
    writer.write(make_rows(ids))
    return list(writer.finish())


def read_ids(place: Place) -> list[int]:
    return sorted(place.read()["id"].to_pylist())
