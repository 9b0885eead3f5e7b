"""TLS and SASL, for both ends of a connection.

Here live key stores, TLS contexts, principals and the SASL mechanisms, each as a pure machine with a client
and a server side. What may be done with a principal (ACLs) is the broker's business, how a mechanism's
messages travel that of `client/net` and `broker/server`: nothing here opens a socket.
"""
