"""Document commands: single commands, bulk writes, mutation tokens.

In: code that sends document commands. Out: change streams.
"""
