"""Small files next to the segments, in Kafka's formats: offsets, epochs, identities and snapshots. Pure.

Their owners replace each file as a whole.
"""
