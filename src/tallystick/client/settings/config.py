"""Client configuration under Kafka's dotted names: ProducerConfig, ConsumerConfig, AdminConfig.

Each holds a ClientConfig, the settings all three share. `parse` takes a mapping as users write it (texts,
numbers, booleans, lists) and reports every problem at once. Defaults are Kafka 4.3's; where one differs, its
description says so. `notes` lists settings that were adjusted, or accepted without effect.

Sources: Kafka 4.3 ProducerConfig, ConsumerConfig, AdminClientConfig, CommonClientConfigs; KIP-939 "Client
    Configuration Changes"; `tallystick.modes`: docs/adr/0027.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from tallystick.client.settings.kafka_names import (
    FUNCTION_SETTINGS,
    INEFFECTIVE_SETTINGS,
    REFUSED_SETTINGS,
    RENAMED_SETTINGS,
    find_function_problems,
    find_refused_settings,
    is_refused,
    shorten_assignor_name,
)
from tallystick.client.settings.security_config import (
    OBJECT_SETTINGS,
    SECURITY_PROTOCOLS,
    SECURITY_SETTINGS,
    TRANSLATED_SETTINGS,
    SecurityConfig,
    build_security_notes,
    parse_security,
    translate_security_texts,
)
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import (
    BadConfig,
    SettingType,
    describe_unknown,
    list_settings,
    parse_values,
    setting,
)
from tallystick.kernel.value import Value

C = TypeVar("C")

MODES: Final = ("2pc", "keep", "resume")
"""Modes that carry a prepared transaction through a crash, strongest first."""


class Address(Value):
    """Address of a broker's listener; prints as `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `host:port` or `[v6]:port`, either with a security protocol in front. Raises ValueError."""
        protocol, separator, address = text.strip().rpartition("://")
        if separator and protocol.upper() not in SECURITY_PROTOCOLS:
            raise ValueError(f"{text!r}: no such security protocol, only {', '.join(SECURITY_PROTOCOLS)}")
        host, _, port = address.rpartition(":")
        if "@" in address:
            raise ValueError(
                "an address has an @, as if a login stood before it: a broker's login is in sasl.username "
                "and sasl.password"
            )
        if not host.strip("[]") or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings that every client has."""

    bootstrap_servers: tuple[str, ...] = setting(
        (),
        "Brokers to contact first, as a comma-separated list of HOST:PORT; one reachable broker is enough.",
    )
    client_id: str = setting("", "Name of this client in the brokers' logs and quotas.")
    security_protocol: str = setting(
        "PLAINTEXT",
        "How connections are protected: TLS (SSL), a login (SASL_PLAINTEXT), or both (SASL_SSL).",
        choices=SECURITY_PROTOCOLS,
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long a request waits for its response before its connection is closed.",
        kind=SettingType.INT,
        low=1,
    )
    retry_backoff_ms: int = setting(
        100, "Initial wait before a request is retried; doubles with every failure.", low=0
    )
    retry_backoff_max_ms: int = setting(1_000, "Longest wait before a request is retried.", low=0)
    reconnect_backoff_ms: int = setting(
        50, "Initial wait before reconnecting to a broker; doubles with every failure.", low=0
    )
    reconnect_backoff_max_ms: int = setting(1_000, "Longest wait before reconnecting to a broker.", low=0)
    socket_connection_setup_timeout_ms: int = setting(
        10_000, "Time allowed for the first connection attempt; doubles with every failure.", low=1
    )
    socket_connection_setup_timeout_max_ms: int = setting(
        30_000, "Longest time allowed for a connection attempt.", low=1
    )
    connections_max_idle_ms: int = setting(
        540_000, "Connections unused for this long are closed. 300000 for an admin client.", low=1
    )
    metadata_max_age_ms: int = setting(300_000, "Metadata is refreshed at least this often.", low=1)
    metadata_recovery_strategy: str = setting(
        "rebootstrap",
        "What to do if no known broker can be reached: start again from bootstrap.servers, or keep trying.",
        choices=("rebootstrap", "none"),
    )
    metadata_cluster_check_enable: bool = setting(
        True,
        "Say which broker of which cluster is wanted, so that another one refuses (Kafka 4.4, KIP-1242). "
        "No effect with metadata.recovery.strategy=none.",
    )
    receive_buffer_bytes: int | None = setting(
        None,
        "SO_RCVBUF; if not set, the operating system chooses. Kafka's default is 32768 (producer) or 65536.",
        kind=SettingType.INT,
        low=1,
        none="-1",
    )
    send_buffer_bytes: int | None = setting(
        None,
        "SO_SNDBUF; if not set, the operating system chooses. Kafka's default is 131072.",
        kind=SettingType.INT,
        low=1,
        none="-1",
    )
    security: SecurityConfig = SecurityConfig()

    def problems(self) -> Iterator[str]:
        """Check rules beyond one setting's bounds."""
        if not self.bootstrap_servers:
            yield "bootstrap.servers: must name at least one HOST:PORT"
        for text in self.bootstrap_servers:
            try:
                Address.parse(text)
            except ValueError as exc:
                yield f"bootstrap.servers: {exc}"
            else:
                protocol, separator, _ = text.strip().rpartition("://")
                if separator and protocol.upper() != self.security_protocol:
                    yield f"bootstrap.servers: {text!r}, and security.protocol is {self.security_protocol}"
        for low_name, high_name in (
            ("retry.backoff.ms", "retry.backoff.max.ms"),
            ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
            ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
        ):
            low, high = _get_setting(self, low_name), _get_setting(self, high_name)
            if low > high:
                yield f"{low_name}: {low} is above {high_name} {high}"

    @property
    def bootstrap_addresses(self) -> tuple[Address, ...]:
        return tuple(Address.parse(text) for text in self.bootstrap_servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer. `functions`: its serializers."""

    client: ClientConfig
    explicit_names: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    functions: Mapping[str, object] = field(default_factory=dict)

    acks: str = setting(
        "all",
        "Acknowledgements required before a record counts as sent: from `all` in-sync replicas "
        "(`-1`), the leader (`1`), or none (`0`).",
        choices=("all", "-1", "1", "0"),
    )
    enable_idempotence: bool = setting(
        True,
        "Write each record once and in order, despite retries. If not set, it is off when acks, "
        "retries or max.in.flight.requests.per.connection exclude it; if set together with such "
        "values, that is an error.",
    )
    max_in_flight_requests_per_connection: int = setting(
        5, "Maximum number of unanswered Produce requests to one broker.", kind=SettingType.INT, low=1
    )
    retries: int = setting(
        INT32_MAX,
        "How often a batch is retried, within delivery.timeout.ms.",
        kind=SettingType.INT,
        low=0,
    )
    delivery_timeout_ms: int = setting(
        120_000, "Time limit from send() to success or failure.", kind=SettingType.INT, low=0
    )
    linger_ms: int = setting(5, "How long a batch waits for more records before it is sent.", low=0)
    batch_size: int = setting(
        16 * KIB,
        "Bytes at which a batch is full; 0 sends every record by itself.",
        kind=SettingType.INT,
        low=0,
    )
    buffer_memory: int = setting(32 * MIB, "Bytes that may wait to be sent before send() blocks.", low=1)
    max_block_ms: int = setting(
        60_000,
        "How long send() waits for memory or metadata, and a transactional call for its response.",
        low=0,
    )
    max_request_size: int = setting(
        MIB, "Largest record, and largest request, in bytes.", kind=SettingType.INT, low=1
    )
    compression_type: str = setting(
        "none", "Compression of record batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    compression_gzip_level: int = setting(
        -1, "Level of gzip, 1 to 9; -1 is zlib's own default.", kind=SettingType.INT, low=-1, high=9
    )
    compression_lz4_level: int = setting(
        9,
        "Level of lz4; 9 is Kafka's default and means its fast compressor.",
        kind=SettingType.INT,
        low=1,
        high=17,
    )
    compression_zstd_level: int = setting(3, "Level of zstd.", kind=SettingType.INT, low=-131_072, high=22)
    partitioner_ignore_keys: bool = setting(
        False, "Distribute keyed records like unkeyed ones instead of by the hash of their key."
    )
    metadata_max_idle_ms: int = setting(
        300_000, "Metadata of a topic that was not written to for this long is dropped.", low=5_000
    )
    transactional_id: str | None = setting(
        None, "Name under which transactions survive this process; used by one producer at a time."
    )
    transaction_timeout_ms: int = setting(
        60_000,
        "The coordinator aborts a transaction that is open for longer. Cannot be set with "
        "two-phase commit, where only a decision ends a transaction.",
        kind=SettingType.INT,
        low=1,
    )
    transaction_two_phase_commit_enable: bool = setting(
        False,
        "Transactions never time out and can be prepared (KIP-939). The broker must allow it and "
        "authorize the client.",
    )
    tallystick_modes: tuple[str, ...] = setting(
        (),
        "Acceptable ways to keep a prepared transaction through a crash, strongest first: `2pc`, `keep`, "
        "`resume`. Not set: `2pc` with transaction.two.phase.commit.enable, else none. Not Kafka's.",
        choices=MODES,
    )

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> "ProducerConfig":
        """Parse settings by dotted name. Raises BadConfig with all problems."""
        return _adjust_defaults(_parse_config(cls, "producer", settings))

    def problems(self) -> Iterator[str]:
        """Check rules that involve more than one setting."""
        request_timeout_ms = self.client.request_timeout_ms
        too_short = self.delivery_timeout_ms < self.linger_ms + request_timeout_ms
        if too_short and "delivery.timeout.ms" in self.explicit_names:
            yield (
                f"delivery.timeout.ms: {self.delivery_timeout_ms} is below linger.ms {self.linger_ms} + "
                f"request.timeout.ms {request_timeout_ms}: a batch could not be sent once"
            )
        if self.compression_gzip_level == 0:
            yield "compression.gzip.level: 0 packs nothing; use 1 to 9, or -1"
        if self.transactional_id == "":
            yield "transactional.id: must not be empty; leave it out for no transactions"
        yield from self._find_idempotence_problems()
        yield from self._find_transaction_problems()

    def _find_idempotence_problems(self) -> Iterator[str]:
        if self.allows_idempotence:
            if self.transactional_id is not None and not self.enable_idempotence:
                yield "enable.idempotence: false, and transactional.id needs it"
            return
        who = "transactional.id" if self.transactional_id is not None else "enable.idempotence"
        if who == "transactional.id" or (
            self.enable_idempotence and "enable.idempotence" in self.explicit_names
        ):
            if self.acks not in ("all", "-1"):
                yield f"acks: {self.acks}, and {who} needs all"
            if self.max_in_flight_requests_per_connection > 5:
                yield (
                    "max.in.flight.requests.per.connection: "
                    f"{self.max_in_flight_requests_per_connection}, and {who} allows 5: a broker remembers "
                    "that many batches"
                )
            if self.retries == 0:
                yield f"retries: 0, and {who} needs at least 1"

    def _find_transaction_problems(self) -> Iterator[str]:
        if "transaction.timeout.ms" in self.explicit_names and self.modes == ("2pc",):
            # KIP-939 "Client Configuration Changes". If a weaker mode is listed too, the timeout is for that.
            yield (
                "transaction.timeout.ms: cannot be set together with "
                'transaction.two.phase.commit.enable=true (KIP-939: "it would be an error to set '
                "transaction.timeout.ms when two.phase.commit.enable is set to 'true'\"): "
                "such a transaction never times out"
            )
        for name in ("transaction.two.phase.commit.enable", "tallystick.modes"):
            if _get_setting(self, name) and self.transactional_id is None:
                yield f"{name}: says nothing without transactional.id"
        modes = self.tallystick_modes
        if list(modes) != [mode for mode in MODES if mode in modes]:
            yield f"tallystick.modes: {','.join(modes)}: each once, strongest first: {', '.join(MODES)}"
        elif modes and "transaction.two.phase.commit.enable" in self.explicit_names:
            two_phase = self.transaction_two_phase_commit_enable
            if two_phase != ("2pc" in modes):
                yield (
                    f"tallystick.modes: {','.join(modes)}, and transaction.two.phase.commit.enable is "
                    f"{'true' if two_phase else 'false'}: `2pc` and that setting go together; without it, "
                    "the modes count"
                )

    @property
    def allows_idempotence(self) -> bool:
        """Whether the other settings allow the broker to recognise a batch that is sent again."""
        return (
            self.acks in ("all", "-1")
            and self.max_in_flight_requests_per_connection <= 5
            and self.retries > 0
        )

    @property
    def acks_on_wire(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def modes(self) -> tuple[str, ...]:
        """Acceptable modes, strongest first; none when nothing may be prepared."""
        if self.tallystick_modes:
            return self.tallystick_modes
        return ("2pc",) if self.transaction_two_phase_commit_enable else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer. `functions`: its deserializers."""

    client: ClientConfig
    explicit_names: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    functions: Mapping[str, object] = field(default_factory=dict)

    group_id: str | None = setting(None, "The consumer group to join and to commit offsets for.")
    group_instance_id: str | None = setting(
        None, "A permanent name: a member that returns with it keeps its partitions (KIP-345)."
    )
    session_timeout_ms: int = setting(
        45_000,
        "A member that sends no heartbeat for this long is removed from the group.",
        kind=SettingType.INT,
        low=1,
    )
    heartbeat_interval_ms: int = setting(3_000, "Interval between heartbeats.", kind=SettingType.INT, low=1)
    max_poll_interval_ms: int = setting(
        300_000, "A member that does not poll for this long leaves the group.", kind=SettingType.INT, low=1
    )
    max_poll_records: int = setting(
        500, "Maximum number of records returned by one poll.", kind=SettingType.INT, low=1
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        ("range", "cooperative-sticky"),
        "How partitions are assigned to members, in order of preference; Java's class names are understood.",
        choices=("range", "roundrobin", "sticky", "cooperative-sticky"),
    )
    auto_offset_reset: str = setting(
        "latest",
        "Where to start without a committed offset; `none` raises an error. Kafka's `by_duration:` "
        "is not supported.",
        choices=("earliest", "latest", "none"),
    )
    enable_auto_commit: bool = setting(True, "Commit positions in the background.")
    auto_commit_interval_ms: int = setting(
        5_000, "Interval between such commits.", kind=SettingType.INT, low=0
    )
    isolation_level: str = setting(
        "read_uncommitted",
        "`read_committed` returns only records of committed transactions and records outside of "
        "transactions.",
        choices=("read_uncommitted", "read_committed"),
    )
    fetch_min_bytes: int = setting(
        1, "Amount of data for which a broker delays a Fetch response.", kind=SettingType.INT, low=0
    )
    fetch_max_wait_ms: int = setting(
        500, "Longest time a broker delays a Fetch response.", kind=SettingType.INT, low=0
    )
    fetch_max_bytes: int = setting(
        50 * MIB, "Maximum size of a Fetch response, in bytes.", kind=SettingType.INT, low=0
    )
    max_partition_fetch_bytes: int = setting(
        MIB,
        "Maximum size of one partition's data in a Fetch response, in bytes.",
        kind=SettingType.INT,
        low=0,
    )
    check_crcs: bool = setting(True, "Whether the checksum of every batch is verified.")
    client_rack: str = setting(
        "", "Rack of this client: a replica in it is read if the broker recommends it."
    )
    allow_auto_create_topics: bool = setting(
        True, "Whether requesting metadata may create a missing topic, if the broker allows it."
    )
    exclude_internal_topics: bool = setting(
        True, "Whether a pattern excludes __consumer_offsets and __transaction_state."
    )
    default_api_timeout_ms: int = setting(
        60_000, "Time limit of a call without an explicit timeout.", kind=SettingType.INT, low=0
    )

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> "ConsumerConfig":
        """Parse settings by dotted name. Raises BadConfig with all problems."""
        return _parse_config(cls, "consumer", settings)

    def problems(self) -> Iterator[str]:
        """Check rules that involve more than one setting."""
        if self.group_id == "":
            yield "group.id: must not be empty; leave it out for no group"
        if self.group_id is None and self.enable_auto_commit and "enable.auto.commit" in self.explicit_names:
            yield "enable.auto.commit: true, and there is no group.id to commit for"
        if self.group_instance_id == "":
            yield "group.instance.id: must not be empty; leave it out for a dynamic member"
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            yield (
                f"heartbeat.interval.ms: {self.heartbeat_interval_ms} must be below "
                f"session.timeout.ms {self.session_timeout_ms}"
            )
        if self.fetch_max_wait_ms >= self.client.request_timeout_ms:
            yield (
                f"fetch.max.wait.ms: {self.fetch_max_wait_ms} must be below "
                f"request.timeout.ms {self.client.request_timeout_ms}"
            )
        if not self.partition_assignment_strategy:
            yield "partition.assignment.strategy: must name at least one"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Settings of an admin client."""

    client: ClientConfig
    explicit_names: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    default_api_timeout_ms: int = setting(
        60_000, "Time limit of a call without an explicit timeout.", kind=SettingType.INT, low=0
    )
    retries: int = setting(
        INT32_MAX,
        "How often a request is retried, within the timeout.",
        kind=SettingType.INT,
        low=0,
    )

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> "AdminConfig":
        """Parse settings by dotted name. Raises BadConfig with all problems."""
        return _parse_config(cls, "admin", {"connections.max.idle.ms": 300_000, **settings})

    def problems(self) -> Iterator[str]:
        """Check rules that involve more than one setting."""
        if self.default_api_timeout_ms < self.client.request_timeout_ms and self.explicit_names & {
            "default.api.timeout.ms",
            "request.timeout.ms",
        }:
            yield (
                f"default.api.timeout.ms: {self.default_api_timeout_ms} is below "
                f"request.timeout.ms {self.client.request_timeout_ms}"
            )


# ----------------------------------------------------------------------------------- parsing


def is_client_setting(name: str) -> bool:
    """Return whether every client takes this setting, in the dialect of any client."""
    return (
        RENAMED_SETTINGS.get(name, name) in CLIENT_SETTINGS
        or name in TRANSLATED_SETTINGS
        or name in OBJECT_SETTINGS
    )


_SHARED_SETTINGS: Final = list_settings(ClientConfig)
CLIENT_SETTINGS: Final = {**_SHARED_SETTINGS, **SECURITY_SETTINGS}
"""Settings that every client has, those of its security among them."""
ROLE_SETTINGS: Final = {
    "producer": list_settings(ProducerConfig),
    "consumer": list_settings(ConsumerConfig),
    "admin": list_settings(AdminConfig),
}


def _parse_config(cls: type[C], role: str, settings: Mapping[str, object]) -> C:
    settings = {name: value for name, value in settings.items() if value is not None}
    objects = {name: value for name, value in settings.items() if name in OBJECT_SETTINGS}
    functions = {
        name: value for name, value in settings.items() if name in FUNCTION_SETTINGS and callable(value)
    }
    texts = _apply_renames(
        {n: _format_value(value) for n, value in settings.items() if n not in objects and n not in functions}
    )
    role_settings = ROLE_SETTINGS[role]
    problems = [
        *find_refused_settings(texts),
        *find_function_problems(functions, role),
        *_find_misplaced_settings(role, texts),
    ]
    client_values, shared_problems = parse_values(
        ClientConfig, {n: t for n, t in texts.items() if n in _SHARED_SETTINGS}
    )
    values, own_problems = parse_values(cls, {n: t for n, t in texts.items() if n in role_settings})
    security, security_problems = parse_security(texts, objects)
    problems += shared_problems + security_problems + own_problems
    if not shared_problems:
        client = ClientConfig(**client_values, security=security)  # type: ignore[arg-type]
        problems += client.problems()
        if not own_problems:
            notes = (*_build_notes(texts), *build_security_notes(security))
            values |= {"client": client, "explicit_names": frozenset(texts), "notes": notes}
            if role in FUNCTION_SETTINGS.values():
                values["functions"] = functions
            config = cls(**values)
            problems += config.problems()  # type: ignore[attr-defined]
            if not problems:
                return config
    raise BadConfig("\n".join(problems))


def _find_misplaced_settings(role: str, texts: Mapping[str, str]) -> Iterator[str]:
    settings_by_name = {**CLIENT_SETTINGS, **ROLE_SETTINGS[role]}
    for name in texts:
        if name in settings_by_name or name in INEFFECTIVE_SETTINGS or is_refused(name):
            continue
        other_roles = [other_role for other_role, settings in ROLE_SETTINGS.items() if name in settings]
        if other_roles:
            yield f"{name}: a setting of {' and '.join(other_roles)}, this is {role}"
        else:
            yield describe_unknown(
                name,
                {**settings_by_name, **dict.fromkeys(RENAMED_SETTINGS), **dict.fromkeys(REFUSED_SETTINGS)},
            )


def _build_notes(texts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name}: has no effect in this client" for name in sorted(texts) if name in INEFFECTIVE_SETTINGS
    )


def _apply_renames(texts: dict[str, str]) -> dict[str, str]:
    for alias, name in RENAMED_SETTINGS.items():
        if alias in texts:
            text = texts.pop(alias)
            texts.setdefault(name, text)
    texts = translate_security_texts(texts)
    assignors = "partition.assignment.strategy"
    if assignors in texts:
        texts[assignors] = ",".join(shorten_assignor_name(part) for part in texts[assignors].split(","))
    return texts


def _format_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Secret():
            return value.reveal()
        case list() | tuple():
            return ",".join(str(part) for part in value)
        case _:
            return str(value)


def _get_setting(config: object, name: str) -> int:
    value: int = getattr(config, name.replace(".", "_"))
    return value


def _adjust_defaults(config: ProducerConfig) -> ProducerConfig:
    """Adjust defaults to the settings that were given, and note it, as Kafka does."""
    shortest = config.linger_ms + config.client.request_timeout_ms
    if config.delivery_timeout_ms < shortest:
        note = f"delivery.timeout.ms: {shortest}, which is linger.ms + request.timeout.ms"
        config = replace(config, delivery_timeout_ms=shortest, notes=(*config.notes, note))
    if config.enable_idempotence and not config.allows_idempotence:
        note = "enable.idempotence: off, because acks, retries or the requests in flight exclude it"
        config = replace(config, enable_idempotence=False, notes=(*config.notes, note))
    return config
