"""Typed tables, as values: how names, keys and types of documents become columns.

Belongs here: pure functions from documents and declarations to columns.
Does not belong here: files of a lake, buckets, pipelines, the parser of documents.
"""
