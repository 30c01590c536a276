"""Readers of a lake: Arrow tables, Spark frames, states of the past, positions, typed JSON.

Belongs here: what the class Lake offers. Does not belong here: anything that writes to a table.
"""
