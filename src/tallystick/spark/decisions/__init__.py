"""Where decisions are kept, and with them what they decide: a topic, or a row of a database.

Shells of `protocol.ports`: no rule is decided here, and nothing imports the sink.
"""
