"""KIP-1242: a client says which broker of which cluster it wants, and another one refuses the connection."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.client.errors import Unreachable
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ClientConfig
from tallystick.kernel.errors import Effect
from tallystick.kernel.value import replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse

pytestmark = pytest.mark.server

END = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)


def run(story: Callable[[ScriptedBroker, Cluster], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            quick = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5, **settings}
            cluster = Cluster(ClientConfig(bootstrap_servers=(broker.address,), **quick))  # type: ignore[arg-type]
            try:
                await asyncio.wait_for(story(broker, cluster), 30)
            finally:
                await cluster.close()

    asyncio.run(main())


async def lose_connections(broker: ScriptedBroker, cluster: Cluster) -> None:
    links = list(cluster.connections._connections.values())
    broker.hang_up()
    while any(link.is_connected for link in links):  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("misrouted", ["cluster", "node"])
def test_nothing_is_sent_to_another_broker_at_the_address(misrouted: str) -> None:
    """KIP-1242: the broker refuses in ApiVersions, before InitProducerId could reach a foreign cluster."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        await cluster.wait_for_versions(1)
        wanted: list[tuple[object, object]] = []

        def versions(seen: Seen) -> object:
            assert isinstance(seen.request, ApiVersionsRequest)
            wanted.append((seen.request.cluster_id, seen.request.node_id))
            if seen.request.cluster_id is None or wanted[-1] == here:
                return broker.versions()
            return ApiVersionsResponse(error_code=129)

        before = broker.metadata()
        here = ("scripted", 2) if misrouted == "node" else ("another", 1)
        broker.node_id = here[1]
        broker.scripts[ApiKey.API_VERSIONS] = versions
        broker.scripts[ApiKey.METADATA] = lambda _: replace(broker.metadata(), cluster_id=here[0])
        await lose_connections(broker, cluster)
        with pytest.raises(Unreachable, match="it is not broker 1 of cluster scripted") as refused:
            await cluster.send(1, END, EndTxnResponse)
        assert refused.value.effect is Effect.NONE
        assert not cluster.image.nodes
        await cluster.refresh()
        assert (cluster.image.cluster_id, set(cluster.image.nodes)) == (here[0], {here[1]})
        assert wanted == [(before.cluster_id, 1), (None, -1)]
        await lose_connections(broker, cluster)
        await cluster.wait_for_versions(here[1])
        assert wanted[2:] == [here]
        assert broker.count(ApiKey.END_TXN) == 0

    run(story)


def test_metadata_that_meets_another_broker_asks_the_bootstrap_servers() -> None:
    """Else a coordinator of the foreign cluster would be asked before anybody knew that it is one."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        def versions(seen: Seen) -> object:
            assert isinstance(seen.request, ApiVersionsRequest)
            return (
                broker.versions()
                if seen.request.cluster_id in (None, "another")
                else ApiVersionsResponse(error_code=129)
            )

        await cluster.start()
        broker.scripts[ApiKey.API_VERSIONS] = versions
        broker.scripts[ApiKey.METADATA] = lambda _: replace(broker.metadata(), cluster_id="another")
        await lose_connections(broker, cluster)
        await cluster.refresh()
        assert cluster.image.cluster_id == "another"

    run(story)


@pytest.mark.parametrize(
    "settings", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}]
)
def test_who_is_wanted_is_not_said_where_nothing_could_follow(settings: dict[str, object]) -> None:
    """metadata.cluster.check.enable "is ignored if rebootstrapping is disabled" (Kafka's documentation)."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        await lose_connections(broker, cluster)
        await cluster.wait_for_versions(1)
        asked = [seen.request for seen in broker.seen if isinstance(seen.request, ApiVersionsRequest)]
        assert [(each.cluster_id, each.node_id) for each in asked] == [(None, -1)] * 2

    run(story, **settings)
