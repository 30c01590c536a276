"""`penstock doctor`: checks of the machine and of a server, with advice for each problem.

In: checks that change nothing. Out: repairs.
"""

from penstock.cli.doctor import doctor_command

__all__ = ["doctor_command"]
