"""Filters of changes by their keys and values: the expressions, and their evaluation on columns.

In: code without I/O that streams, replications and the node's producers share. Out: filters by collection.
"""
