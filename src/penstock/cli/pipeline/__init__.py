"""The commands of `penstock pipeline`.

In: options, output and exit codes. Out: pipelines themselves (penstock.spark).
"""

from __future__ import annotations

from importlib import import_module

# Importing a module registers its commands; help lists them in this order.
for part in (
    "run_command",
    "init_command",
    "definition_commands",
    "state_commands",
    "table_commands",
    "retype_command",
    "erase_command",
    "resnapshot_command",
):
    import_module(f"{__name__}.{part}")
