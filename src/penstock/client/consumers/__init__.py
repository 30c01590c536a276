"""Consumers: they read changes from where they stopped, and commit their positions.

In: the connection of change streams with stores of positions. Out: the formats and places of positions.
"""
