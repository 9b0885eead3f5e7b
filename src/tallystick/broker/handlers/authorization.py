"""Rights of one request: questions to the authorizer that several handlers share.

Which right each API needs, which code a denial has and where in the answer it stands is Kafka's, API by API.
Two rules hold for all:

* rights are checked before existence: a client without DESCRIBE must not learn that a topic exists;
* a resource named in the request gets an error; any other is silently omitted.

Source: AuthHelper, KafkaApis, ControllerApis.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tallystick.broker.authorizer.audit_log import is_audited
from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    GROUP,
    TOPIC,
    Operation,
    group_resource,
    topic_resource,
    transactional_id_resource,
)
from tallystick.broker.authorizer.known_rights import WRITE_TRANSACTIONAL_ID, Right, make_right
from tallystick.broker.handlers.ports import HasAuthorizer
from tallystick.broker.server.request_context import RequestContext

NameCheck = Callable[[str], bool]


def is_known(context: RequestContext, right: Right, name: str) -> bool:
    """Return whether a right is known to exist, and leaves nothing to log; if not, `allows` must be asked."""
    known = context.known_rights.get(right)
    if known is None or name not in known.names or is_audited(logging.DEBUG):
        return False
    known.checks += 1
    return True


class TopicReferences:
    """Number of times a request names each topic, for the audit log: counted when the first line is written.

    Source: AuthHelper.filterByAuthorized, whose actions have the count of the entries of a name.
    """

    __slots__ = ("_counts", "_list_names")

    def __init__(self, list_names: Callable[[], Iterable[str]]) -> None:
        """Keep the function that lists a name for each entry that is asked about in its name."""
        self._list_names = list_names
        self._counts: Mapping[str, int] | None = None

    def __call__(self, name: str) -> int:
        if self._counts is None:
            self._counts = Counter(self._list_names())
        return max(1, self._counts.get(name, 0))


def make_topic_check(
    broker: HasAuthorizer,
    context: RequestContext,
    operation: Operation,
    *,
    names: Callable[[], Iterable[str]] = tuple,
    log_denied: bool = True,
) -> NameCheck:
    """Return a function that tells whether the sender may perform the operation on a topic.

    It asks the authorizer once for each topic, however many partitions the request names.

    Args:
        names: lists the topic of each entry of the request, for the audit log; none: each is named once.
    """
    authorizer = broker.authorizer
    if not authorizer.is_configured:
        return _allow
    right = make_right(operation, TOPIC)
    answers: dict[str, bool] = {}
    references = TopicReferences(names)

    def check(name: str) -> bool:
        allowed = answers.get(name)
        if allowed is None:
            allowed = is_known(context, right, name) or authorizer.allows(
                context, operation, topic_resource(name), references=references, log_denied=log_denied
            )
            answers[name] = allowed
        return allowed

    return check


def make_topic_check_or_cluster(
    broker: HasAuthorizer,
    context: RequestContext,
    operation: Operation,
    on_cluster: Operation | None = None,
    *,
    names: Callable[[], Iterable[str]] = tuple,
) -> NameCheck:
    """Return such a function for an operation that a right on the cluster grants on every topic.

    Args:
        on_cluster: the operation on the cluster; None if it is the same.
    """
    if not broker.authorizer.is_configured:
        return _allow
    if may_on_cluster(broker, context, on_cluster or operation, log_denied=False):
        return _allow
    return make_topic_check(broker, context, operation, names=names)


def may_on_cluster(
    broker: HasAuthorizer, context: RequestContext, operation: Operation, *, log_denied: bool = True
) -> bool:
    """Return whether the sender may perform the operation on the cluster."""
    return broker.authorizer.allows(context, operation, CLUSTER_RESOURCE, log_denied=log_denied)


def may_on_group(
    broker: HasAuthorizer,
    context: RequestContext,
    operation: Operation,
    group_id: str,
    *,
    log_denied: bool = True,
) -> bool:
    """Return whether the sender may perform the operation on a group."""
    return is_known(context, make_right(operation, GROUP), group_id) or broker.authorizer.allows(
        context, operation, group_resource(group_id), log_denied=log_denied
    )


def may_write_as(broker: HasAuthorizer, context: RequestContext, name: str) -> bool:
    """Return whether the sender has WRITE on the transactional id, as all steps of a transaction need."""
    return is_known(context, WRITE_TRANSACTIONAL_ID, name) or broker.authorizer.allows(
        context, Operation.WRITE, transactional_id_resource(name)
    )


def find_cluster_operations(broker: HasAuthorizer, context: RequestContext) -> int:
    """Return the bits of what the sender may do to the cluster; 0 if it may not describe it (KIP-430)."""
    if not may_on_cluster(broker, context, Operation.DESCRIBE):
        return 0
    return broker.authorizer.find_authorized_operations(context, CLUSTER_RESOURCE)


def find_topic_operations(broker: HasAuthorizer, context: RequestContext, name: str) -> int:
    """Return the bits of what the sender may do to a topic (KIP-430)."""
    return broker.authorizer.find_authorized_operations(context, topic_resource(name))


def _allow(name: str) -> bool:
    return True
