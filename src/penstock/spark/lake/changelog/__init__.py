"""The changelog: how batches are written, what it gained since a version, which of its rows still count.

Belongs here: rules over rows of the changelog. Does not belong here: the current table and other dependents.
"""
