"""A running broker: data directory, handlers and listening socket, assembled and shut down in order."""

import asyncio
import ctypes
import logging
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import field

from tallystick import __version__, _lazy
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.dynamic_config import RereadConfig, build_effective_config
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.listeners import Listener
from tallystick.broker.config.metrics_listener import METRICS
from tallystick.broker.forget_config import REMEDY
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.hangup import HangupWatch, reread_all
from tallystick.broker.metadata.scram_credentials import CredentialChange
from tallystick.broker.metadata.store import FILE_NAME, peek_broker_configs
from tallystick.broker.metrics.broker_metrics import GaugeSources, read_gauges
from tallystick.broker.metrics.http import MetricsServer
from tallystick.broker.notify import READY, STOPPING, Notifier
from tallystick.broker.partitions.descriptors import DescriptorBudget
from tallystick.broker.partitions.log_cleaner import count_held_back_bytes
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.server.listening import list_signing_keys, list_tls_states
from tallystick.broker.server.request_context import DEFAULT_LISTENER
from tallystick.broker.server.server import Server
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.limits import MIB
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value, replace
from tallystick.security.sasl.scram import SCRAM_MECHANISMS
from tallystick.storage.disk.fs import StorageFailure

_uvloop_factory: Callable[[], asyncio.AbstractEventLoop] | None
try:
    import uvloop
except ImportError:
    _uvloop_factory = None
else:
    _uvloop_factory = uvloop.new_event_loop

_log = logging.getLogger("tallystick.broker")

RETAINED_BYTES: Final = 32 * MIB
# Source: glibc malloc.h. Setting either disables glibc's own adjustment of both, so both are set.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Exit code: another start would end the same way, before a person has looked at the disk or the files.
MUST_BE_LOOKED_AT: Final = 3
# How long a stop waits for pending answers before it closes their connections.
STOP_TIMEOUT_S: Final = 10.0
# Open files: one per partition, one per connection, and a few hundred more.
_OPEN_FILES_TARGET: Final = 1 << 20


class Service:
    """One broker that accepts connections. Lives on the loop that created it."""

    def __init__(self, config: BrokerConfig, users: Sequence[CredentialChange] = ()) -> None:
        """Create a broker that is not started.

        Args:
            users: SCRAM credentials to set at the start, for a first administrator.

        Raises: BadConfig, if the metrics' library is missing or a key or certificate cannot be used.
        """
        descriptors = _make_descriptor_budget()
        self._listeners = config.make_listeners()
        self._users = users
        self.broker = Broker(config, Path(config.log_dirs), SystemClock(), descriptors=descriptors)
        problems: list[str] = []
        with collect_problems(problems):
            self._server = self._make_server(config)
        with collect_problems(problems):
            self._metrics = _make_metrics_server(self.broker)
        if problems:
            raise BadConfig("\n".join(problems))
        self.metrics_address: Endpoint | None = None
        self.stop_requested = asyncio.Event()

    def _make_server(self, config: BrokerConfig) -> Server:
        """Return a server that is not listening. Raises: BadConfig, before any data is touched."""
        broker = self.broker
        # Keys that were changed at run time are used, whatever became of the files in the configuration.
        stored = peek_broker_configs(broker.data_dir / FILE_NAME)
        try:
            effective, _ = build_effective_config(config, stored)
            return Server(
                effective,
                RequestDispatcher(broker, HANDLERS),
                lambda: broker.descriptors.limit_connections(broker.topics.partition_count),
                memory=broker.request_memory,
                find_credential=broker.find_scram_credential,
            )
        except BadConfig as exc:
            changed = sorted({name for configs in stored.values() for name in configs})
            if not changed:
                raise
            raise BadConfig(
                f"{exc}\nset while the broker ran, and stronger than its configuration: {', '.join(changed)};"
                f" {REMEDY.format(broker.data_dir)}"
            ) from exc

    async def start(self) -> None:
        """Recover the data directory, then listen: no client is served before recovery ends.

        Raises: BadConfig, before any data is touched; DirectoryInUse, DataDirectoryUnusable, CorruptLog,
            MetadataUnusable, OSError.
        """
        broker = self.broker
        await self._server.prepare()
        broker.open()
        await self._set_users()
        broker.unsent_bytes = lambda: self._server.unsent.total
        self._server.loss_listeners.append(broker.fetch_sessions.drop_connection)
        self._server.load_config(broker.config)
        broker.config_listeners.append(self._server.apply_config)
        broker.prepare_change = self._server.prepare_change
        await self._server.start()
        broker.addresses = _resolve_addresses(self._listeners, self._server.addresses)
        broker.address = next(iter(broker.addresses.values()))
        await broker.start()
        await self._start_metrics()
        for text in self._list_exposures():
            _log.warning("a listener that other machines can reach: %s", text)

    async def _set_users(self) -> None:
        scram = self.broker.scram_controller
        problems = []
        for change in self._users:
            refusals = await scram.alter([change])
            problems += [f"--add-scram: user {user}: {each.reason}" for user, each in refusals.items()]
        if problems:
            raise BadConfig("\n".join(problems))
        needing = [
            each.name
            for each in self._listeners
            if each.protocol.uses_sasl and SCRAM_MECHANISMS.keys() & each.settings.sasl_enabled_mechanisms
        ]
        if needing and not scram.credentials:
            _log.warning(
                "listener %s: no user can log in with SCRAM yet; a start with --add-scram sets the first",
                ", ".join(needing),
            )

    async def _start_metrics(self) -> None:
        if self._metrics is None:
            return
        metrics = self._metrics
        of = replace(
            make_gauge_sources(self.broker),
            tls_listeners=lambda: [*list_tls_states(self._server.ports), *metrics.tls_states],
            signing_keys=lambda: [each.state for each in list_signing_keys(self._server.ports)],
            authentications=lambda: self._server.authentications,
        )
        self.broker.metrics.registry.add_source(lambda: read_gauges(of))
        self.metrics_address = await self._metrics.start()
        _log.info("metrics are at %s", self._metrics.url)

    async def stop(self) -> None:
        """Answer pending requests, close every connection, then leave the data directory clean."""
        if self._metrics is not None:
            await self._metrics.stop()
        self.broker.release_waiters()
        await self._server.stop(STOP_TIMEOUT_S)
        await self.broker.stop()

    async def refresh_files(self) -> None:
        """Put changed keys, certificates and credentials in use now; what cannot be used is logged."""
        for port in self._server.ports:
            await port.refresh_files()
        if self._metrics is not None:
            await self._metrics.refresh_files()

    async def take_reread_config(self, read: BrokerConfig) -> RereadConfig:
        """Change what a running broker can of a configuration that was read again. Raises: BadConfig."""
        return await self.broker.take_reread_config(read)

    def describe(self) -> str:
        """Return the one line that a start prints."""
        broker = self.broker
        policy = broker.config.flush_policy
        durability = policy if policy == "ack" else f"{policy} (not power-safe)"
        warnings = "".join(f", {text}" for text in self._list_exposures())
        return (
            f"tallystick {__version__}: cluster {broker.cluster_id}, "
            f"listening on {self._describe_addresses()}, "
            f"data in {broker.data_dir}, flush.policy {durability}{warnings}"
        )

    def _list_exposures(self) -> list[str]:
        metrics = self.broker.static_config.make_metrics_listener()
        is_open = metrics is not None and metrics.is_open_to_the_network
        return list_exposures(self._listeners, *([METRICS] if is_open else []))

    def _describe_addresses(self) -> str:
        """Return the address alone where there is one plain listener, else each with its listener's name."""
        if [each.name for each in self._listeners] == [DEFAULT_LISTENER]:
            return str(self.broker.address)
        return ", ".join(f"{name}://{address}" for name, address in self.broker.addresses.items())

    def describe_listeners(self) -> str:
        """Return the text of `listeners` with the bound ports, for a restart at the same addresses."""
        ports = {name: port for name, (_, port) in self._server.addresses.items()}
        return ",".join(
            f"{each.name}://{Endpoint(each.endpoint.host, ports[each.name])}" for each in self._listeners
        )


def _make_metrics_server(broker: Broker) -> MetricsServer | None:
    """Return a server if `metrics.listener` is set. Raises: BadConfig, before any data is touched."""
    listen = broker.config.make_metrics_listener()
    if listen is None:
        return None
    # Here, because a broker without the listener must not load the library.
    try:
        return MetricsServer(listen, broker.metrics.registry.read)
    except _lazy.MissingLibrary as exc:
        raise BadConfig(f"metrics.listener: {exc}") from exc


def make_gauge_sources(broker: Broker) -> GaugeSources:
    """Return the sources of an open broker's gauges."""

    def held_back(partition: Partition) -> int:
        try:
            return count_held_back_bytes(partition.log, broker.clock.now_ms())
        except (StorageFailure, OSError):
            return 0  # the log is offline, which it reports itself

    return GaugeSources(
        now_ms=broker.clock.now_ms,
        transaction_max_timeout_ms=lambda: broker.config.transaction_max_timeout_ms,
        partitions=broker.topics.list_partitions,
        transactions=broker.transactions,
        groups=broker.groups,
        held_back=held_back,
        reserve=broker.data_directory.reserve,
        unclean_start=broker.startup_comparison,
        authorizer=broker.authorizer if isinstance(broker.authorizer, StandardAuthorizer) else None,
        topics_to_delete=lambda: len(broker.topic_controller.deletions),
    )


def list_exposures(listeners: Sequence[Listener], *open_names: str) -> list[str]:
    """Return what the network may do or read at these listeners.

    Args:
        open_names: further ones that it comes in by without a login.
    """
    exposed = [each.name for each in listeners if each.lets_strangers_in] + list(open_names)
    readable = [each.name for each in listeners if each.shows_secrets_to_the_network]
    texts = (
        (exposed, "open to the network without a login"),
        (readable, "with passwords or tokens in clear"),
    )
    return [f"{', '.join(names)} {text}" for names, text in texts if names]


def _resolve_addresses(
    listeners: Sequence[Listener], bound: Mapping[str, tuple[str, int]]
) -> dict[str, Endpoint]:
    """Return each listener's address for clients: the advertised one, where port 0 is the bound port."""
    addresses = {}
    for listener in listeners:
        host, port = bound[listener.name]
        endpoint = listener.advertised or Endpoint(listener.endpoint.host or host, 0)
        addresses[listener.name] = Endpoint(endpoint.host, endpoint.port or port)
    return addresses


class Hooks(Value, kw_only=True):
    """The part that the program around a broker takes.

    ready        called when clients are served
    users        SCRAM credentials to set at the start
    read_config  at SIGHUP: returns the configuration as a start would read it; blocking
    notifier     tells systemd
    """

    ready: Callable[[Service], None]
    users: Sequence[CredentialChange] = ()
    read_config: Callable[[], BrokerConfig] | None = None
    notifier: Notifier = field(default_factory=Notifier)


async def serve(config: BrokerConfig, hooks: Hooks) -> int:
    """Run a broker until its `stop_requested` is set, a signal arrives, or the disk fails.

    Returns:
        The process's exit code: 0, or 3 when the disk failed.
    """
    hangups = HangupWatch()
    service = Service(config, hooks.users)
    await service.start()
    loop = asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):  # not the main thread: the embedding program stops it
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop_requested.set)
    hooks.ready(service)
    hooks.notifier.send(READY, f"STATUS=cluster {service.broker.cluster_id}, at {service.broker.address}")
    rereading = asyncio.ensure_future(
        hangups.run(lambda: reread_all(service, hooks.read_config, hooks.notifier))
    )
    reasons = (service.stop_requested, service.broker.failed_event)
    ends = [asyncio.ensure_future(reason.wait()) for reason in reasons]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    hooks.notifier.send(STOPPING)
    for task in (*ends, rereading):
        task.cancel()
    await service.stop()
    _log.info("stopped")
    return MUST_BE_LOOKED_AT if service.broker.failure is not None else 0


def run(config: BrokerConfig, hooks: Hooks) -> int:
    """Run `serve` on its own loop, on uvloop where it is installed and allowed."""
    _raise_open_files_limit()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=_uvloop_factory if config.event_loop == "auto" else None) as runner:
        return runner.run(serve(config, hooks))


def _make_descriptor_budget() -> DescriptorBudget:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorBudget(None if soft == resource.RLIM_INFINITY else soft)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files as far as allowed: a shell's 1,024 may be too few for partitions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _OPEN_FILES_TARGET if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_TARGET)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; return False where the C library has no `mallopt` (musl, macOS).

    glibc returns the top of the heap after every free of some hundred KiB, and the next answer of a few
    megabytes faults the same pages in again: that was two thirds of a fetch's CPU time. For a broker that
    owns its process: an embedding program keeps its own allocator settings.

    Cost: up to `RETAINED_BYTES` more resident memory after large answers (docs/notes/performance.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, RETAINED_BYTES)) and bool(
        mallopt(_M_MMAP_THRESHOLD, RETAINED_BYTES)
    )
