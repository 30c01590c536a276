"""Pipelines: from buckets to the tables of lakes, and on to dependents.

Belongs here: the TOML definition, the run, and the state that other processes see.
Does not belong here: rules about rows (lake) and kinds of dependents.
"""

ORDER = ("transform", "definition", "state", "checks", "lineage", "run", "maintenance")
