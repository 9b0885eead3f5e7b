"""The database that `tallystick top` looks into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tallystick.dualwrite import SqlStore


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(url)
    SqlStore(engine).create()
    yield url
    engine.dispose()
