"""Topics of a pipeline: created on its own broker, required to exist on any other cluster."""

from collections.abc import Mapping

from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition


def ensure_topics(definition: Definition, client: Mapping[str, str], *, make: bool) -> None:
    """Ensure that every topic named by the pipeline exists.

    Args:
        client: client settings, including `bootstrap.servers`.
        make: create missing topics, with the broker's default number of partitions.
    Raises: BadConfig with each missing topic, its key's path, and the command that creates it; client
        errors.
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
