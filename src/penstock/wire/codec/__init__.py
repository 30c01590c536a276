"""Frames and their declarations: numbers, headers, layouts, and the extension module.

In: what holds for every message. Out: any single message.
"""
