"""Readers of a lake: Arrow tables, Spark frames, past states, positions, typed JSON.

Belongs here: the methods of the class Lake. Does not belong here: anything that writes to a table.
"""
