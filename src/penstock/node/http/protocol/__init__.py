"""HTTP/1.1 over one connection: requests read strictly, served in order, each within a time.

In: bytes, requests and their responses. Out: what a request means (pages).
"""
