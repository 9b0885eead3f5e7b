"""Allocation of the next producer id and epoch.

One epoch of every producer id is reserved for markers: data is written with 32766 at most, so that the marker
that ends it, one above under version 2, still fits. A client that has been handed a kept transaction writes
nothing until that is over, and may go up to 32767.

Source: KIP-890 "Overflow"; KIP-939, the example with two overflows.
"""

from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.limits import EPOCH_MAX

WRITER_EPOCH_MAX: Final = EPOCH_MAX - 1


def start_producer_id(producer_id: ProducerId) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, ProducerEpoch(0))


def bump_epoch(client: ProducerIdAndEpoch, epoch_max: int, spare_id: ProducerId) -> ProducerIdAndEpoch:
    """Return the identity after `client`: its next epoch, or epoch 0 of `spare_id` past `epoch_max`.

    Strictly newer than `client` either way [TXN-4].
    """
    if client.epoch < epoch_max:
        return ProducerIdAndEpoch(client.producer_id, ProducerEpoch(client.epoch + 1))
    check(spare_id != client.producer_id, f"producer id {spare_id} was handed out before")
    return start_producer_id(spare_id)


def derive_marker_identity(writer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    """Return the identity for the markers of a transaction under version 2, and of a fenced one under any."""
    return ProducerIdAndEpoch(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
