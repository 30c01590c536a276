"""The dashboard: one page about a node and its buckets, and the documents that it shows.

In: samples, their stream to the page, static files. Out: the rules of authentication (pages).
"""
