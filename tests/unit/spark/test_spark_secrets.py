"""Logins in the options of the source and the sink: parsed whole, and printed nowhere."""

import pickle
from collections.abc import Mapping

import pytest

from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import parse_sink_options
from tallystick.spark.options.source_options import parse_source_options

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECURE = {
    "kafka.bootstrap.servers": "b:9093",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="u" password="hunter2";',
    "kafka.ssl.truststore.location": "/ca.pem",
    "kafka.ssl.keystore.location": "/key.p12",
    "kafka.ssl.keystore.password": "hunter2",
}


def test_options_print_without_secrets_and_reach_the_tasks() -> None:
    source = parse_source_options({**SECURE, "subscribe": "t"}, QueryType.STREAM)
    table = {"table": "delta:s3://b/t", "table.storage.aws_secret_access_key": "hunter2"}
    sink = parse_sink_options({**SECURE, **table, "transactional.id.prefix": "p"}, QueryType.STREAM)
    assert sink.table is not None
    assert dict(pickle.loads(pickle.dumps(sink.table)).storage_options) == {
        "aws_secret_access_key": "hunter2"
    }
    for options in (source, sink):
        again = pickle.loads(pickle.dumps(options))
        for shown in (repr(options), str(again), repr([options.client]), f"{again.client}"):
            assert "hunter2" not in shown
            assert "b:9093" in shown
        assert again == options
        assert again.client["ssl.keystore.password"] == "hunter2"
    login = ConsumerConfig.parse(source.client).client.security.sasl.login
    assert (login.username, login.password.reveal()) == ("u", "hunter2")


@pytest.mark.parametrize(
    "change",
    [
        {"kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="u" password="hunter2"'},
        {"kafka.ssl.keystore.pasword": "hunter2"},
        {"kafka.security.protocol": "SASL_PLAINTEXT"},
        {"kafka.sasl.oauthbearer.config": "hunter2"},
    ],
)
def test_problems_do_not_show_them_either(change: Mapping[str, str]) -> None:
    for parse in (
        lambda: parse_source_options({**SECURE, **change, "subscribe": "t"}),
        lambda: parse_sink_options({**SECURE, **change, "transactional.id.prefix": "p"}, QueryType.STREAM),
    ):
        with pytest.raises(BadConfig, match=r"^kafka\.") as caught:
            parse()
        assert "hunter2" not in str(caught.value)
