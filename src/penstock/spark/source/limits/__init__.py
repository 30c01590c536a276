"""Limits of a micro-batch: the rows among the seqnos that are left to read."""
