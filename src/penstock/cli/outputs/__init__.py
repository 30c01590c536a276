"""The JSON that commands print: a type for each kind of line, and the JSON Schema of each command.

In: the fields of --json outputs, as programs may rely on them. Out: the code that prints them.
"""
