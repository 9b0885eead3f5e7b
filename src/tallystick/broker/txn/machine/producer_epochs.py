"""Which pair of producer id and epoch comes next.

One epoch of every producer id is held back for markers: data is signed with 32766 at most, so that the marker
that ends it, under version 2 one above, still fits. A client that has been handed a kept transaction signs
nothing until that is over, and may go up to 32767.

Source: KIP-890 "Overflow"; KIP-939, the example with two overflows.
"""

from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId
from tallystick.kernel.limits import EPOCH_MAX

WRITER_EPOCH_MAX: Final = EPOCH_MAX - 1


def first_pair(producer_id: ProducerId) -> Identity:
    return Identity(producer_id, ProducerEpoch(0))


def next_pair(client: Identity, epoch_max: int, spare_id: ProducerId) -> Identity:
    """The pair after `client`: its next epoch, or the first of another id where that would pass `epoch_max`.

    Strictly newer than `client` either way [TXN-4].
    """
    if client.epoch < epoch_max:
        return Identity(client.producer_id, ProducerEpoch(client.epoch + 1))
    check(spare_id != client.producer_id, f"producer id {spare_id} was handed out before")
    return first_pair(spare_id)


def marker_of(writer: Identity) -> Identity:
    """Who signs the markers of a transaction under version 2, and of one that is fenced under any."""
    return Identity(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
