"""The SASL mechanisms as pure machines: bytes in, bytes out, a client and a server side each."""
