"""The kinds of dependents, one module each.

Belongs here: modules with one registered class; the registry imports every module of this package.
Does not belong here: helpers of several kinds.
"""
