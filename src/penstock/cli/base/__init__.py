"""What all commands have in common: the application, options, output, interrupts.

In: what two commands would otherwise both write. Out: commands.
"""
