"""Lineage of a run: events of OpenLineage for its sources, and their delivery.

Belongs here: the events and the queue. Does not belong here: anything that a run waits for.
"""
