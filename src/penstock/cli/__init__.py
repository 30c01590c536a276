"""The command line: the same calls as text and JSON."""

from importlib import import_module

from penstock.cli.entry import main

__all__ = ["main"]

# Importing a command's module registers it; help lists them in this order.
COMMANDS = (
    *("serve", "user", "tls", "stats", "streams", "compact", "check"),
    *("load", "tail", "decode", "workload", "pipeline", "demo"),
)
for command in COMMANDS:
    import_module(f"penstock.cli.{command}")
