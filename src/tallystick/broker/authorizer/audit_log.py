"""The audit log of the authorizer: a logger with Kafka's name and levels."""

import logging
from typing import Final

AUDIT_LOGGER: Final = "kafka.authorizer.logger"
TRACE: Final = 5  # below DEBUG, as in Java's loggers
# Whether it wants lines of a level. Asked with every request, because levels change at any time.
is_audited: Final = logging.getLogger(AUDIT_LOGGER).isEnabledFor
