"""Entries of a secondary index: value types, sorted entries, files of entries.

Belongs here: pure functions over entries, and their files. Does not belong here: the index's commits and searches.
"""
