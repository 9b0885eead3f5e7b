"""Allocation of the next producer id and epoch.

One epoch of every producer id is reserved for markers: data is written with 32766 at most, so that the marker
that ends it, one above under version 2, still fits. A client that has been handed a kept transaction writes
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
    """Return the identity after `client`: its next epoch, or epoch 0 of `spare_id` past `epoch_max`.

    Strictly newer than `client` either way [TXN-4].
    """
    if client.epoch < epoch_max:
        return Identity(client.producer_id, ProducerEpoch(client.epoch + 1))
    check(spare_id != client.producer_id, f"producer id {spare_id} was handed out before")
    return first_pair(spare_id)


def marker_of(writer: Identity) -> Identity:
    """Return the identity for the markers of a transaction under version 2, and of a fenced one under any."""
    return Identity(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
