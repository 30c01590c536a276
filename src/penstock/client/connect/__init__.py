"""One connection to one node: address, credentials, TLS, handshake, requests and their replies, retry with back-off.

Here belongs what is needed before a connection is ready, and what every connection does. What goes over it does not.
"""
