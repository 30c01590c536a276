"""Mutation testing of the modules that decide, see `python -m mutation --help`."""
