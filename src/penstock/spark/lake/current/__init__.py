"""The current table: the newest change of each document, merged from the changelog when a policy finds it due.

Belongs here: merging, and the state that readers see while a merge is pending.
Does not belong here: selecting, sorting and converting what is read.
"""
