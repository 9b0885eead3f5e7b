"""How a store is called on pages and in messages: its URL without what is secret."""

import pytest

from tallystick.dualwrite.stores.by_url import describe_url, open_store
from tallystick.kernel.settings import BadConfig


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql+psycopg://me:hush@host:5432/shop", "postgresql+psycopg://me@host:5432/shop"),
        (
            "postgresql+psycopg://me@host/shop?password=hush&sslmode=require",
            "postgresql+psycopg://me@host/shop?sslmode=require",
        ),
        ("mysql+pymysql://me:h%40sh:@host/shop?ssl_key_Password=hush", "mysql+pymysql://me@host/shop"),
        ("sqlite:////var/lib/shop.db", "sqlite:////var/lib/shop.db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("rocksdb:///var/lib/my%20shop", "rocksdb:///var/lib/my%20shop"),
        (
            "zookeeper://me:hush@one:2181,two:2181/shop?path=/p",
            "zookeeper://me@one:2181,two:2181/shop?path=/p",
        ),
        ("postgresql://me:hush@[::1/shop", "postgresql://(not a URL)"),
        ("me:hush@host/shop", "(not a URL)"),
        ("delta:/lake/payments", "delta:/lake/payments"),
        ("delta:s3://me:hush@bucket/payments", "delta:s3://me@bucket/payments"),
    ],
)
def test_a_store_is_called_by_its_url_without_the_password(url: str, name: str) -> None:
    assert describe_url(url) == name
    assert "hush" not in describe_url(url)


@pytest.mark.parametrize("url", ["", " "])
def test_an_empty_url_is_refused_as_that(url: str) -> None:
    with pytest.raises(BadConfig, match=r"^the URL of the store is empty$"), open_store(url):
        raise AssertionError("it was opened")


def test_only_sql_databases_have_a_schema() -> None:
    with pytest.raises(BadConfig, match="SQL databases alone"), open_store("rocksdb:///nowhere", "s"):
        raise AssertionError("it was opened")
