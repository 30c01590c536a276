"""The Python function that a source's changes pass: its modules, and the comparison of its result with the changes.

Belongs here: everything about a user's function. Does not belong here: filters in SQL.
"""
