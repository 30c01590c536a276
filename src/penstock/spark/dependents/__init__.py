"""Dependents of a changelog: indexes, invalidation messages, copies in other buckets.

Each dependent stores the changelog version that it has applied, together with its result. So a crash leaves only
versions to apply, and a failing dependent delays neither the tables nor the other dependents.
Belongs here: the kinds, one module each in `kinds`, and their shared code. Does not belong here: when they run.
"""

ORDER = ("secondary", "kafka", "kinds")
