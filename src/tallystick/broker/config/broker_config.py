"""Configuration of the broker, under Kafka's names and with the defaults of Kafka 4.3.

Three sources, strongest first: the command line, the file, the defaults. All problems are reported together,
and stop the start. A Kafka setting that has no meaning for one broker on one machine is in NO_EFFECT: it is
accepted, so that a `server.properties` written for Kafka starts this broker, and named in one warning. A
setting that asks for a missing feature is refused with the reason, and any other name is unknown and refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tallystick.broker.config.connection_overrides import OVERRIDES, parse_overrides
from tallystick.broker.config.kafka_names import INEFFECTIVE_SETTINGS, is_refused, iter_problems
from tallystick.broker.config.listeners import (
    DEFAULT_LISTENERS,
    LISTENER_SETTINGS,
    Listener,
    is_listener_setting,
    parse_listeners,
    read_listeners,
)
from tallystick.broker.config.metrics_listener import (
    AUTH_PREFIX,
    MetricsListener,
    find_metrics_setting,
    parse_metrics_listener,
)
from tallystick.broker.config.setting_texts import SettingTexts
from tallystick.broker.config.topic_config import (
    COMPRESSION_TYPES,
    DAY_MS,
    DEFAULT_ONLY_SETTINGS,
    HOUR_MS,
    TopicConfig,
)
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.limits import FRAME_BYTES_MAX_DEFAULT, MIB
from tallystick.kernel.log_lines import DEFAULT_FORMAT, DEFAULT_LEVEL, LOG_FORMATS, LOG_LEVELS
from tallystick.kernel.settings import (
    BadConfig,
    Setting,
    SettingType,
    build_config,
    list_settings,
    parse_values,
    setting,
)
from tallystick.security.http_credentials import CredentialFiles

FLUSH_POLICIES: Final = ("ack", "interval", "os")
DEFAULT_PROTOCOL_MAP: Final = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker; None is "no limit" or "not set".

    `originals` keeps the texts that were set, by name: DescribeConfigs tells a set value from a default.
    """

    originals: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    # --------------------------------------------------------------- address and identity
    node_id: int = setting(1, "Id of this broker.", kind=SettingType.INT, low=0)
    log_dirs: str = setting("", "The data directory. Only one: a single broker has no replicas to spread.")
    listeners: str = setting(
        DEFAULT_LISTENERS,
        "Addresses to listen on, NAME://HOST:PORT separated by commas; port 0 selects a free one.",
    )
    advertised_listeners: str | None = setting(
        None,
        "Addresses given to clients, each to those of the listener of its name, if they differ from the "
        "listeners' own.",
        none="",
    )
    listener_security_protocol_map: str = setting(
        DEFAULT_PROTOCOL_MAP,
        "Protocol of each listener, NAME:PROTOCOL separated by commas: PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL.",
    )
    allow_insecure_listeners: bool = setting(
        False,
        "Whether clients of other machines may come in without a login and without encryption; a PLAINTEXT "
        "listener that is not on the loopback is refused otherwise, unless an authorizer is set. "
        "Not Kafka's.",
    )
    broker_rack: str | None = setting(None, "Rack of this broker, as given to clients.", none="")

    # --------------------------------------------------------------------- durability
    flush_policy: str = setting(
        "ack",
        "When data is synced to disk: `ack` before the response, `interval` every "
        "log.flush.interval.ms, `os` when the operating system does, as in Kafka. Only `ack` "
        "survives power loss. Not Kafka's.",
        choices=FLUSH_POLICIES,
    )
    log_flush_interval_ms: int | None = setting(
        None,
        "Time between syncs under `flush.policy=interval`; 1000 if not set.",
        kind=SettingType.LONG,
        low=1,
        none="",
    )
    log_reserve_bytes: int = setting(
        16 * MIB,
        "Disk space reserved for internal topics and transaction markers, so that they can be "
        "written on a full disk. Not Kafka's.",
        low=0,
    )

    # ------------------------------------------------------------------------ sockets
    socket_request_max_bytes: int = setting(
        FRAME_BYTES_MAX_DEFAULT, "Largest request accepted, in bytes.", kind=SettingType.INT, low=1024
    )
    socket_listen_backlog_size: int = setting(
        1024,
        "Connections that the kernel queues until they are accepted. Kafka: 50.",
        kind=SettingType.INT,
        low=1,
    )
    connections_max_idle_ms: int = setting(
        600_000, "Connections that complete no request for this long are closed.", low=1
    )
    max_connections: int = setting(
        INT32_MAX,
        "Maximum number of simultaneous connections. 0, which Kafka takes, would let no client in.",
        kind=SettingType.INT,
        low=1,
        dynamic=True,
    )
    max_connections_per_ip: int = setting(
        INT32_MAX,
        "Maximum number of simultaneous connections from one address.",
        kind=SettingType.INT,
        low=0,
        dynamic=True,
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        "Limits of single hosts instead of max.connections.per.ip, `host:count` separated by commas. Names "
        "are resolved at the start and when the setting is changed.",
        dynamic=True,
    )
    queued_max_request_bytes: int = setting(
        128 * MIB,
        "Memory for requests, from their first byte until they are answered, over all connections. Kafka: no "
        "limit.",
        low=MIB,
    )
    queued_max_response_bytes: int = setting(
        64 * MIB,
        "Memory for answers that clients have not read yet, over all connections. Above it, connections that "
        "do not read are closed. Not Kafka's.",
        low=MIB,
    )
    request_timeout_ms: int = setting(
        30_000, "How long the broker itself waits for an append to be durable.", kind=SettingType.INT, low=1
    )
    event_loop: str = setting(
        "auto", "`auto` uses uvloop if it is installed. Not Kafka's.", choices=("auto", "asyncio")
    )
    logging_level: str = setting(
        DEFAULT_LEVEL, "What `tallystick broker` logs. Not Kafka's.", choices=LOG_LEVELS, dynamic=True
    )
    logging_format: str = setting(
        DEFAULT_FORMAT,
        "Form of that log: lines of text, or one JSON object a line. Not Kafka's.",
        choices=LOG_FORMATS,
    )

    # ------------------------------------------------------------------------- topics
    num_partitions: int = setting(
        1, "Number of partitions of a topic created without one.", kind=SettingType.INT, low=1
    )
    default_replication_factor: int = setting(
        1,
        "Replicas of a topic created without a number; a single broker has one.",
        kind=SettingType.INT,
        low=1,
        high=1,
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a topic is created when a client requests its metadata."
    )
    delete_topic_enable: bool = setting(True, "Whether DeleteTopics is allowed.")
    max_partitions: int = setting(
        20_000,
        "Maximum number of partitions of all topics together; each keeps files open. Not Kafka's.",
        kind=SettingType.INT,
        low=1,
    )

    # ----------------------------------------------------------- a topic's fall-backs
    compression_gzip_level: int = setting(
        -1,
        "Default of the topic setting compression.gzip.level.",
        kind=SettingType.INT,
        low=-1,
        high=9,
        dynamic=True,
    )
    compression_lz4_level: int = setting(
        9,
        "Default of the topic setting compression.lz4.level.",
        kind=SettingType.INT,
        low=1,
        high=17,
        dynamic=True,
    )
    compression_type: str = setting(
        "producer", "Default of the topic setting compression.type.", choices=COMPRESSION_TYPES, dynamic=True
    )
    compression_zstd_level: int = setting(
        3,
        "Default of the topic setting compression.zstd.level.",
        kind=SettingType.INT,
        low=-131072,
        high=22,
        dynamic=True,
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "Default of the topic setting cleanup.policy.",
        choices=("delete", "compact"),
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = setting(
        DAY_MS, "Default of the topic setting delete.retention.ms.", low=0, dynamic=True
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        INT64_MAX, "Default of the topic setting max.compaction.lag.ms.", low=1, dynamic=True
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5, "Default of the topic setting min.cleanable.dirty.ratio.", low=0, high=1, dynamic=True
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, "Default of the topic setting min.compaction.lag.ms.", low=0, dynamic=True
    )
    log_flush_interval_messages: int = setting(
        INT64_MAX, "Default of the topic setting flush.messages.", low=1, dynamic=True
    )
    log_index_interval_bytes: int = setting(
        4096, "Default of the topic setting index.interval.bytes.", kind=SettingType.INT, low=0, dynamic=True
    )
    log_index_size_max_bytes: int = setting(
        10_485_760,
        "Default of the topic setting segment.index.bytes.",
        kind=SettingType.INT,
        low=4,
        dynamic=True,
    )
    log_message_timestamp_after_max_ms: int = setting(
        HOUR_MS, "Default of the topic setting message.timestamp.after.max.ms.", low=0, dynamic=True
    )
    log_message_timestamp_before_max_ms: int = setting(
        INT64_MAX, "Default of the topic setting message.timestamp.before.max.ms.", low=0, dynamic=True
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "Default of the topic setting message.timestamp.type.",
        choices=("CreateTime", "LogAppendTime"),
        dynamic=True,
    )
    log_preallocate: bool = setting(False, "Default of the topic setting preallocate.", dynamic=True)
    log_retention_bytes: int | None = setting(
        None,
        "Default of the topic setting retention.bytes.",
        kind=SettingType.LONG,
        low=0,
        none="-1",
        dynamic=True,
    )
    log_retention_hours: int = setting(
        168, "Default of the topic setting retention.ms, in hours.", kind=SettingType.INT, low=-1
    )
    log_retention_minutes: int | None = setting(
        None, "Default of the topic setting retention.ms, in minutes.", kind=SettingType.INT, low=-1, none=""
    )
    log_retention_ms: int | None = setting(
        None,
        "Default of the topic setting retention.ms.",
        kind=SettingType.LONG,
        low=-1,
        none="",
        dynamic=True,
    )
    log_roll_hours: int = setting(
        168, "Default of the topic setting segment.ms, in hours.", kind=SettingType.INT, low=1
    )
    log_roll_ms: int | None = setting(
        None, "Default of the topic setting segment.ms.", kind=SettingType.LONG, low=1, none="", dynamic=True
    )
    log_roll_jitter_hours: int = setting(
        0, "Default of the topic setting segment.jitter.ms, in hours.", kind=SettingType.INT, low=0
    )
    log_roll_jitter_ms: int | None = setting(
        None,
        "Default of the topic setting segment.jitter.ms.",
        kind=SettingType.LONG,
        low=0,
        none="",
        dynamic=True,
    )
    log_segment_bytes: int = setting(
        1_073_741_824,
        "Default of the topic setting segment.bytes.",
        kind=SettingType.INT,
        low=MIB,
        dynamic=True,
    )
    log_segment_delete_delay_ms: int = setting(
        60_000, "Default of the topic setting file.delete.delay.ms.", low=0, dynamic=True
    )
    message_max_bytes: int = setting(
        1_048_588,
        "Default of the topic setting max.message.bytes.",
        kind=SettingType.INT,
        low=0,
        dynamic=True,
    )
    min_insync_replicas: int = setting(
        1, "Default of the topic setting min.insync.replicas.", kind=SettingType.INT, low=1, dynamic=True
    )
    unclean_leader_election_enable: bool = setting(
        False, "Default of the topic setting unclean.leader.election.enable.", dynamic=True
    )

    # ----------------------------------------------------------------- housekeeping
    log_retention_check_interval_ms: int = setting(
        300_000, "Interval between checks for segments past their retention.", low=1
    )
    log_cleaner_enable: bool = setting(True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = setting(
        15_000, "Interval between checks for logs to compact.", low=0, dynamic=True
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * MIB,
        "Memory for the keys of one compaction, which runs in a child process.",
        low=MIB,
        dynamic=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "Interval between writes of the recovery points.", kind=SettingType.INT, low=0
    )
    producer_id_expiration_ms: int = setting(
        DAY_MS,
        "Producers that have written nothing for this long are forgotten.",
        kind=SettingType.INT,
        low=1,
        dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Interval between checks for such producers.", kind=SettingType.INT, low=1
    )

    # ---------------------------------------------------------------------- fetching
    fetch_max_bytes: int = setting(
        57_671_680, "Largest response to a Fetch request.", kind=SettingType.INT, low=1024
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "Maximum number of fetch sessions.", kind=SettingType.INT, low=0
    )
    max_request_partition_size_limit: int = setting(
        2000,
        "Maximum number of partitions in a DescribeTopicPartitions response.",
        kind=SettingType.INT,
        low=1,
    )

    # ------------------------------------------------------------------------ groups
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "How long a new group waits for more members.", kind=SettingType.INT, low=0
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout a member may request.", kind=SettingType.INT, low=0
    )
    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout a member may request.", kind=SettingType.INT, low=0
    )
    group_max_size: int = setting(
        INT32_MAX, "Maximum number of members of a group.", kind=SettingType.INT, low=1
    )
    offset_metadata_max_bytes: int = setting(
        4096, "Largest metadata of a committed offset.", kind=SettingType.INT, low=0
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval between checks for expired offsets.", low=1
    )
    offsets_retention_minutes: int = setting(
        10_080, "Offsets of an empty group expire after this.", kind=SettingType.INT, low=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "Partitions of __consumer_offsets; fixed once it exists.", kind=SettingType.INT, low=1
    )
    offsets_topic_segment_bytes: int = setting(
        100 * MIB, "Segment size of __consumer_offsets.", kind=SettingType.INT, low=MIB
    )

    # ------------------------------------------------------------------ transactions
    transaction_state_log_num_partitions: int = setting(
        50, "Partitions of __transaction_state; fixed once it exists.", kind=SettingType.INT, low=1
    )
    transaction_state_log_segment_bytes: int = setting(
        100 * MIB, "Segment size of __transaction_state.", kind=SettingType.INT, low=MIB
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "Longest transaction.timeout.ms a producer may request.", kind=SettingType.INT, low=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "Transactional ids unused for this long are forgotten.", kind=SettingType.INT, low=1
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Interval between checks for transactions past their timeout.", kind=SettingType.INT, low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Interval between checks for expired transactional ids.", kind=SettingType.INT, low=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        False, "Whether producers may prepare transactions that never time out (KIP-939)."
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether the coordinator verifies the first batch of a transaction.",
        dynamic=True,
    )
    delete_open_transactions: bool = setting(
        False,
        "Whether an administrator may delete records of an open transaction, and topics that an "
        "open two-phase transaction wrote to.",
        dynamic=True,
    )

    # ------------------------------------------------------------------ authorization
    authorizer_class_name: str | None = setting(
        None,
        "Kafka's name of its authorizer, for access control by ACLs. Without it a client may do everything.",
        choices=(STANDARD_AUTHORIZER,),
        none="",
    )
    super_users: str = setting(
        "", "Principals that may do everything, as `User:name`, separated by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Whether a resource that no ACL names is open to every principal."
    )

    # ----------------------------------------------------------------------- metrics
    metrics_listener: str | None = setting(
        None,
        "HOST:PORT at which /metrics is served in Prometheus' text format, https://HOST:PORT with TLS: "
        "`metrics.ssl.*` are its own settings over `ssl.*`. Port 0 selects a free one. Needs "
        "`pip install '.[metrics]'`. Not Kafka's.",
        none="",
    )
    metrics_auth_token_file: str | None = setting(
        None, "File with the bearer token that lets a scraper in. Not Kafka's.", none=""
    )
    metrics_auth_user: str = setting(
        "", "User that HTTP's Basic authentication lets in at metrics.listener. Not Kafka's."
    )
    metrics_auth_password_file: str | None = setting(
        None, "File with the password of metrics.auth.user. Not Kafka's.", none=""
    )

    def problems(self) -> Iterator[str]:
        """Yield violations of rules that involve more than one setting."""
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield (
                f"group.min.session.timeout.ms: {self.group_min_session_timeout_ms} is above"
                f" group.max.session.timeout.ms={self.group_max_session_timeout_ms}"
            )
        if self.socket_request_max_bytes > self.queued_max_request_bytes:
            yield (
                f"socket.request.max.bytes: {self.socket_request_max_bytes} is above"
                f" queued.max.request.bytes={self.queued_max_request_bytes}, so that no such request could be"
                " received"
            )
        if self.max_connections_per_ip == 0 and not self.max_connections_per_ip_overrides.strip():
            yield f"max.connections.per.ip: 0 lets no client in without {OVERRIDES}"
        if "," in self.log_dirs:
            yield f"log.dirs: {self.log_dirs!r} lists several directories; only one is supported"
        yield from self.find_security_problems()

    def find_security_problems(self) -> Iterator[str]:
        """Yield what is wrong with listeners, keys' settings, rights and metrics."""
        yield from self._find_listener_problems()
        yield from self._find_override_problems()
        yield from self._find_authorizer_problems()
        yield from self._find_metrics_problems()

    def _find_listener_problems(self) -> Iterator[str]:
        try:
            listeners = self.make_listeners()
        except BadConfig as exc:
            yield from str(exc).splitlines()
            return
        exposed = [listener for listener in listeners if listener.is_open_to_the_network]
        if exposed and not self.allow_insecure_listeners and not self.originals.get("authorizer.class.name"):
            yield (
                f"listeners: {exposed[0]} lets everyone who reaches it read, write and delete: there is "
                "neither a login nor encryption. Listen on the loopback, use SASL_SSL, or SSL with "
                "ssl.client.auth=required, or give allow.insecure.listeners=true if the network is closed"
            )

    def _find_override_problems(self) -> Iterator[str]:
        try:
            _ = self.connection_overrides
        except BadConfig as exc:
            yield from str(exc).splitlines()

    @property
    def connection_overrides(self) -> Mapping[str, int]:
        """`max.connections.per.ip.overrides` by host. Raises: BadConfig, as `parse` does."""
        return parse_overrides(self.max_connections_per_ip_overrides)

    def list_sound_listeners(self) -> list[Listener]:
        """Return the listeners whose own settings have no problem; those of others are unknown."""
        listeners, problems = read_listeners(
            self.listeners, self.advertised_listeners, self.listener_security_protocol_map, self.originals
        )
        return [
            each
            for each in listeners
            if not any(line.endswith(f"(listener {each.name})") for line in problems)
        ]

    def _find_metrics_problems(self) -> Iterator[str]:
        try:
            metrics = self.make_metrics_listener()
        except BadConfig as exc:
            yield from str(exc).splitlines()
            return
        if metrics is None:
            auth_names = [
                name for name in self.originals if name.startswith(AUTH_PREFIX) and self.originals[name]
            ]
            if auth_names:
                yield f"{auth_names[0]}: has no effect without metrics.listener"
        elif metrics.is_open_to_the_network and not self.allow_insecure_listeners:
            yield (
                f"metrics.listener: everyone who reaches {metrics.listener.endpoint} reads the metrics, "
                "names of topics among them. Listen on the loopback, give metrics.auth.token.file, or "
                "allow.insecure.listeners=true if the network is closed"
            )

    def make_metrics_listener(self) -> MetricsListener | None:
        """Return the listener of /metrics, if there is one. Raises: BadConfig, as `parse` does."""
        if self.metrics_listener is None:
            return None
        files = CredentialFiles(
            prefix=AUTH_PREFIX,
            token_file=self.metrics_auth_token_file,
            user=self.metrics_auth_user,
            password_file=self.metrics_auth_password_file,
        )
        return parse_metrics_listener(self.metrics_listener, files, self.originals)

    def make_listeners(self) -> tuple[Listener, ...]:
        """Return the listeners with their own settings. Raises: BadConfig, as `parse` does."""
        return parse_listeners(
            self.listeners, self.advertised_listeners, self.listener_security_protocol_map, self.originals
        )

    def _find_authorizer_problems(self) -> Iterator[str]:
        for name in self.super_user_names:
            if ":" not in name:
                yield f"super.users: {name!r} is no principal: write Type:name, as in User:{name}"
        if not self.authorizer_class_name:
            for name in ("super.users", "allow.everyone.if.no.acl.found"):
                if self.originals.get(name, "").strip():
                    yield f"{name}: has no effect without authorizer.class.name={STANDARD_AUTHORIZER}"

    @property
    def super_user_names(self) -> frozenset[str]:
        """The principals of `super.users`."""
        return frozenset(name.strip() for name in self.super_users.split(";") if name.strip())

    @property
    def flush_interval_ms(self) -> int:
        return 1000 if self.log_flush_interval_ms is None else self.log_flush_interval_ms

    @classmethod
    def parse(cls, originals: Mapping[str, str]) -> "BrokerConfig":
        """Return the configuration for `originals`, by dotted name. Raises BadConfig with all problems."""
        config, problems = cls.read(originals)
        if problems:
            raise BadConfig("\n".join(problems))
        return config

    @classmethod
    def read(cls, originals: Mapping[str, str]) -> tuple["BrokerConfig", list[str]]:
        """Return the configuration as far as it can be read, and every problem.

        Problems of listeners are looked for even if a value elsewhere cannot be read: a user who corrects
        a file should not meet the next problem at the next start.
        """
        settings = dict(originals)
        for old, new in RENAMED_SETTINGS.items():
            if old in settings:
                settings.setdefault(new, settings.pop(old))
        controllers = settings.pop("controller.listener.names", "")
        _remove_controller_listeners(settings, controllers)
        problems = list(iter_problems(settings))
        effective = {
            name: text
            for name, text in settings.items()
            if name not in INEFFECTIVE_SETTINGS and not is_refused(name)
        }
        own = {
            name: text
            for name, text in effective.items()
            if not is_listener_setting(name) and find_metrics_setting(name) is None
        }
        values, wrong = parse_values(cls, own)
        config = cls(**{"originals": MappingProxyType(SettingTexts(effective)), **values})  # type: ignore[arg-type]
        problems += wrong
        problems += config.find_security_problems() if wrong else config.problems()
        return config, problems

    def make_topic_config(self, overrides: Mapping[str, str] = MappingProxyType({})) -> TopicConfig:
        """Return a topic's configuration: its own `overrides` over this broker's fall-backs.

        Raises: BadConfig with all problems.
        """
        texts = {}
        for name, spec in TOPIC_SETTINGS.items():
            fallback = self.find_topic_fallback(spec)
            if fallback is not None:
                texts[name] = fallback[1]
        return build_config(TopicConfig, texts | drop_default_only_settings(overrides))

    def find_topic_fallback(self, spec: Setting) -> tuple[str, str] | None:
        """Return the broker setting that gives topic setting `made` its value, and that value's text.

        None when none of them is set: the topic setting's own default, which is Kafka's, applies.
        """
        for synonym in spec.synonyms:
            text = self.originals.get(synonym.name)
            if text is not None and text != "":
                return synonym.name, self.scale_text(text, synonym.scale)
        return None

    @staticmethod
    def scale_text(text: str, scale: int) -> str:
        """Convert a broker setting's text to the unit of the topic setting that falls back to it."""
        value = text.strip()
        return value if scale == 1 or value.startswith("-") else str(int(value) * scale)


def drop_default_only_settings(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return `overrides` without the settings that are accepted only as their default. Raises BadConfig."""
    wrong = [
        f"{name}: only {DEFAULT_ONLY_SETTINGS[name]!r} is supported: there is no tiered storage"
        for name, text in overrides.items()
        if name in DEFAULT_ONLY_SETTINGS and text != DEFAULT_ONLY_SETTINGS[name]
    ]
    if wrong:
        raise BadConfig("\n".join(wrong))
    return {name: text for name, text in overrides.items() if name not in DEFAULT_ONLY_SETTINGS}


def list_ineffective(names: Iterable[str]) -> list[str]:
    """Return those of the names that are accepted and change nothing, each once."""
    return sorted(INEFFECTIVE_SETTINGS.intersection(names))


def _remove_controller_listeners(settings: dict[str, str], controllers: str) -> None:
    """Remove controller listeners: a KRaft server.properties has them, and there is no quorum here."""
    names = {name.strip().upper() for name in controllers.split(",") if name.strip()}
    for key in ("listeners", "advertised.listeners", "listener.security.protocol.map"):
        if key in settings:
            parts = [
                part
                for part in settings[key].split(",")
                if part.partition(":")[0].strip().upper() not in names
            ]
            settings[key] = ",".join(parts)


BROKER_SETTINGS: Final = list_settings(BrokerConfig) | LISTENER_SETTINGS
TOPIC_SETTINGS: Final = list_settings(TopicConfig)

# Kafka's older name, which still works, and the newer one, which wins when both are given.
RENAMED_SETTINGS: Final = {"broker.id": "node.id", "log.dir": "log.dirs"}
