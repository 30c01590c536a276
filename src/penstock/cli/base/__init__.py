"""The parts that all commands share: the application, options, output, interrupts.

In: code that two commands would otherwise both write. Out: commands.
"""
