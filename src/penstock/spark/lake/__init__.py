"""A lake: a directory or an object-store prefix with a bucket's Delta tables, changelog and current documents.

Belongs here: the tables' files, commits and merges, readers of tables, maintenance. Nothing here needs Spark,
except that readers return Spark frames to callers that have a session.
Does not belong here: indexes and sinks (dependents), queries and their checkpoints (pipeline).
"""

ORDER = ("tables", "changelog", "current", "reading", "maintenance")
