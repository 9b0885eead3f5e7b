"""Settings of Kafka, librdkafka and Spark that are not ours, read from tables that packages contain.

A line of a table has columns separated by tabs: name, treatment, reason, and more if its reader expects them.

    renamed           the reason is the name here
    no effect         accepted: the setting only tunes what is missing here
    refused           the setting promises something that nothing here keeps
    refused but `x`   the same, unless the value is one of those quoted: they ask for the existing behaviour

A name with `*` at its end is the beginning of refused names.
"""

import pkgutil
import re
from collections.abc import Mapping
from enum import Enum

from tallystick.kernel.check import require
from tallystick.kernel.value import Value


class Treatment(Enum):
    RENAMED = "renamed"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class ForeignSetting(Value):
    """A line of a table.

    allowed  the values that are not refused
    more     the columns after the reason
    """

    name: str
    treatment: Treatment
    allowed: tuple[str, ...]
    reason: str
    more: tuple[str, ...]


class ForeignSettings:
    """A table, by treatment, in its order.

    aliases           names here, by the foreign ones
    ineffective       names without effect
    refusals          refused settings, by name
    refused_prefixes  reasons, by the beginning of refused names
    """

    def __init__(self, package: str) -> None:
        """Read `kafka_names.tsv` of a package."""
        settings = read_foreign_settings(package)
        self.aliases: Mapping[str, str] = {
            each.name: each.reason for each in settings if each.treatment is Treatment.RENAMED
        }
        self.ineffective = frozenset(each.name for each in settings if each.treatment is Treatment.NO_EFFECT)
        refusals = [each for each in settings if each.treatment is Treatment.REFUSED]
        self.refusals: Mapping[str, ForeignSetting] = {
            each.name: each for each in refusals if not each.name.endswith("*")
        }
        self.refused_prefixes: Mapping[str, str] = {
            each.name[:-1]: each.reason for each in refusals if each.name.endswith("*")
        }


def read_foreign_settings(package: str) -> tuple[ForeignSetting, ...]:
    """Return the lines of `kafka_names.tsv` in a package, which may be in a zip file."""
    data = require(pkgutil.get_data(package, "kafka_names.tsv"), "the package has its table of names")
    return tuple(_parse_line(line) for line in data.decode().splitlines()[1:])


def _parse_line(line: str) -> ForeignSetting:
    name, treatment, reason, *more = line.split("\t")
    treatment, _, values = treatment.partition(" but ")
    allowed = tuple(re.findall(r"`(.*?)`", values))
    return ForeignSetting(name, Treatment(treatment), allowed, reason, tuple(more))
