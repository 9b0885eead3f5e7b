"""What options of the source mean, what is wrong with them, and that the guide's table is the code's."""

import pytest
from tools.spark_options import GUIDE, find_block, make_block

from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import OPTIONS, OptionSupport, QueryType
from tallystick.spark.options.source_options import (
    Assigned,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    Matching,
    SourceOptions,
    Subscribed,
    build_client_settings,
    parse_source_options,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
CLUSTER = {"kafka.bootstrap.servers": "localhost:9092"}

# Spark 4.3 structured-streaming-kafka-integration.md: its tables, and its list of what "cannot be set".
GUIDE_NAMES = """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp startingOffsetsByTimestamp
    startingOffsets endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss
    kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger
    minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix kafka.group.id
    includeHeaders startingOffsetsByTimestampStrategy topic kafka.partitioner.class
    kafka.auto.offset.reset kafka.key.deserializer kafka.value.deserializer kafka.key.serializer
    kafka.value.serializer kafka.enable.auto.commit kafka.interceptor.classes
"""


def options(query: QueryType | None = QueryType.STREAM, **given: str) -> SourceOptions:
    named = {name.replace("__", "."): text for name, text in given.items()}
    topics = {} if named.keys() & {"subscribe", "assign", "subscribePattern"} else {"subscribe": "a"}
    return parse_source_options({**CLUSTER, **topics, **named}, query)


def problems(query: QueryType | None = QueryType.STREAM, **given: str) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        options(query, **given)
    return str(caught.value).splitlines()


def test_every_option_of_the_guide_is_answered() -> None:
    assert set(GUIDE_NAMES.split()) <= {option.name for option in OPTIONS}
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.doc for option in OPTIONS)


def test_the_table_in_the_guide_is_that_of_the_code() -> None:
    """`python -m tools.spark_options` writes it anew."""
    assert find_block(GUIDE.read_text()) == make_block()


def test_what_is_supported_is_read() -> None:
    made = options(
        QueryType.STREAM,
        subscribe=" a, b ,a",
        FailOnDataLoss="FALSE",
        includeheaders="true",
        minPartitions="4",
        maxrecordsperpartition="100",
        maxOffsetsPerTrigger="20",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="2m",
        kafkaConsumer__pollTimeoutMs="500",
        kafka__Client__Id="me",
        kafka__group__id="without effect",
        groupIdPrefix="without effect",
    )
    assert made == SourceOptions(
        topics=Subscribed(("a", "b")),
        starting=Edge.LATEST,
        ending=Edge.LATEST,
        client={
            "bootstrap.servers": "localhost:9092",
            "client.id": "me",
            "isolation.level": "read_committed",
        },
        include_headers=True,
        fail_on_data_loss=False,
        poll_timeout_ms=500,
        max_offsets=20,
        min_offsets=10,
        max_trigger_delay_ms=120_000,
        min_partitions=4,
        max_records_per_partition=100,
    )
    assert made.read_committed
    assert not options(kafka__isolation__level="read_uncommitted").read_committed


def test_topics() -> None:
    assert options(assign='{"a":[1,0]}').topics == Assigned((A0, A1))
    assert options(subscribePattern="a.*").topics == Matching("a.*")


def test_places() -> None:
    assert options(QueryType.BATCH).starting is Edge.EARLIEST
    offsets = '{"a":{"0":23,"1":-2}}'
    assert options(startingOffsets=offsets).starting == AtOffsets({A0: 23, A1: Edge.EARLIEST})
    times = '{"a":{"0":1000}}'
    both = options(startingOffsets=offsets, startingOffsetsByTimestamp=times)
    assert both.starting == AtTimes({A0: 1000}), "times go before offsets"
    three = options(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp="5")
    assert three.starting == AtTime(5), "one time for all goes before both"
    assert options(QueryType.BATCH, endingTimestamp="7").ending == AtTime(7)


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("100", 100), ("100ms", 100), ("2 h", 7_200_000), ("1d", 86_400_000)]
)
def test_delays(text: str, ms: int) -> None:
    assert options(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_everything_wrong_is_said_at_once() -> None:
    said = problems(
        QueryType.STREAM,
        subscribe="a",
        assign="{",
        startingOfsets="earliest",
        minPartitions="0",
        failOnDataLoss="yes",
        endingOffsets="latest",
        topic="out",
        kafka__auto__offset__reset="latest",
        kafka__interceptor__classes="my.Interceptor",
        kafka__fetch__min__byte="1",
    )
    assert len(said) == 9
    for start in (
        "startingofsets: unknown option; did you mean startingOffsets?",
        "topic: an option of the sink, this is a source",
        "kafka.auto.offset.reset: 'latest' is refused: use startingOffsets",
        "kafka.interceptor.classes: 'my.Interceptor' is refused: no Java classes are loaded",
        "endingOffsets: only in a batch query",
        "assign: '{' is not JSON such as",
        "failOnDataLoss: 'yes' is not true or false",
        "minPartitions: '0' is not a whole number from 1",
        "kafka.fetch.min.byte: unknown setting; did you mean fetch.min.bytes?",
    ):
        assert [line for line in said if line.startswith(start)], start


@pytest.mark.parametrize(
    ("query", "given", "said"),
    [
        (None, {"subscribe": "a", "subscribePattern": "b"}, "exactly one"),
        (None, {"subscribe": " , "}, "subscribe: no topic is named"),
        (None, {"subscribePattern": "("}, "subscribePattern: '(' is not a regular expression"),
        (None, {"assign": '{"a":["0"]}'}, "assign: "),
        (None, {"startingOffsets": '{"a":{"0":-3}}'}, "-3 is not -2 to"),
        (None, {"startingOffsets": '{"a":{"x":1}}'}, "a x: 1, in what should be"),
        (None, {"startingTimestamp": "soon"}, "startingTimestamp: 'soon' is not a whole number"),
        (None, {"maxTriggerDelay": "15 minutes"}, "maxTriggerDelay: '15 minutes' is not a time"),
        (QueryType.STREAM, {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "3 is above"),
        (None, {"resume.from.prefix": "p"}, "checkpointLocation must be given as well"),
        (None, {"resume.from.prefix": "a b", "checkpointLocation": "/c"}, "resume.from.prefix: 'a b' is"),
        (None, {"resume.from.database": "sqlite://"}, "resume.from.prefix alone, which is not given"),
        (QueryType.BATCH, {"checkpointLocation": "/c"}, "checkpointLocation: only in a streaming query"),
        (QueryType.BATCH, {"startingOffsets": "latest"}, "a batch cannot start at latest"),
        (QueryType.BATCH, {"endingOffsets": "earliest"}, "a batch cannot end at earliest"),
        (QueryType.BATCH, {"startingOffsets": '{"a":{"0":-1}}'}, "a-0 cannot start at latest"),
        (QueryType.BATCH, {"endingOffsets": '{"a":{"0":-2}}'}, "a-0 cannot end at earliest"),
        (
            QueryType.BATCH,
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "a-0 starts at 5, behind its end 4",
        ),
        (
            QueryType.BATCH,
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":9}}'},
            "only one of them names a-0, a-1",
        ),
    ],
)
def test_refusals(query: QueryType | None, given: dict[str, str], said: str) -> None:
    told = problems(query, **given)
    assert len(told) == 1
    assert said in told[0]


def test_a_batch_ignores_the_limits_of_a_stream() -> None:
    """KafkaSourceProvider.validateBatchOptions: "maxOffsetsPerTrigger option ignored in batch queries"."""
    assert options(QueryType.BATCH, maxOffsetsPerTrigger="1", maxTriggerDelay="1s").min_offsets is None


def test_the_settings_of_a_client() -> None:
    idle = [option.name for option in OPTIONS if option.support is OptionSupport.NO_EFFECT]
    given = {
        **CLUSTER,
        **dict.fromkeys(idle, "x"),
        "Kafka.Client.Id": "me",
        "kafka.enable.auto.commit": "true",
    }
    assert build_client_settings(given) == {"bootstrap.servers": "localhost:9092", "client.id": "me"}


def test_options_without_a_cluster_or_topics() -> None:
    with pytest.raises(BadConfig) as caught:
        parse_source_options({})
    said = str(caught.value)
    assert "kafka.bootstrap.servers: must name at least one" in said
    assert "assign, subscribe, subscribePattern: exactly one of these" in said
