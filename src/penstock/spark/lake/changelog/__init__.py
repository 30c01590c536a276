"""The changelog: how batches are written, which rows a version adds, and which rows still count.

Belongs here: rules over rows of the changelog. Does not belong here: the current table and other dependents.
"""
