"""Maintenance of a pipeline's tables and dependents together: erasures, and requests to a run.

Belongs here: operations on all parts of a lake. Does not belong here: rules for the rows of one table (lake).
"""
