"""Dependents of a changelog: indexes, invalidation messages, copies in other buckets.

Each dependent remembers the changelog version that it has applied, together with the result. A crash leaves
only versions to apply, and a failing dependent holds up neither the tables nor the other dependents.
Belongs here: the kinds, one module each in `kinds`, and what they share. Does not belong here: when they run.
"""

ORDER = ("secondary", "kinds")
