"""Maintenance of a lake's tables: compact small files, vacuum files that no version needs.

Belongs here: operations that leave all rows as they are.
"""
