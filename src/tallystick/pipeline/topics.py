"""The topics of a pipeline: made on a broker of its own, asked for on a cluster of somebody else's."""

from collections.abc import Mapping

from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition


def require_topics(definition: Definition, client: Mapping[str, str], *, make: bool) -> None:
    """See that every topic the pipeline names is there.

    Args:
        client: settings of a client, `bootstrap.servers` among them.
        make: create what is missing, with the broker's own number of partitions.
    Raises: BadConfig with each topic that is missing, its key's path, and the command that makes it; a
        client's errors.
    """
    wanted = {**dict(definition.topics_written()), **dict(definition.topics_read())}
    with Admin(client) as admin:
        there = admin.list_topics(internal=True)
        missing = {topic: path for topic, path in wanted.items() if topic not in there}
        if make and missing:
            admin.create_topics(NewTopic(name=topic) for topic in missing).all()
        elif missing:
            servers = client["bootstrap.servers"]
            raise BadConfig(
                "\n".join(
                    f"{path}: there is no topic {topic!r}; make it with `tallystick topics create {topic} "
                    f"--bootstrap-server {servers}`"
                    for topic, path in missing.items()
                )
            )
