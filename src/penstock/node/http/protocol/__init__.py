"""HTTP/1.1 over one connection: requests are parsed strictly and served in order, each within a time limit.

In: bytes, requests and their responses. Out: the meaning of requests (pages).
"""
