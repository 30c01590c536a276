"""One connection to one node: address, credentials, TLS, handshake, requests and replies, retry with back-off.

In: the steps that make a connection ready, and the calls that every connection has. Out: documents and streams.
"""
