"""tallystick: a Kafka transaction and another system's transaction commit together, or not at all."""

__version__ = "0.1.0.dev0"
