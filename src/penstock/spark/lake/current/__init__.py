"""Document tables: the newest change of each document, merged from the changelog according to a policy.

Belongs here: `current`, typed tables, merging, and the state that readers see while a merge is pending.
Does not belong here: selecting, sorting and converting rows for readers.
"""
