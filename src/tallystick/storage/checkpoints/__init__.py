"""Small files beside the segments, in Kafka's formats: checkpoints of offsets and epochs, and snapshots.

`checkpoint_text` parses and formats; their owners replace each file as a whole.
"""
