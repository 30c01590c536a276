"""The result of one check of `penstock doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    """How a check has ended. Only a problem changes the exit code."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        topic: the heading under which it is shown.
        check: a short name, for programs.
        state: how the check has ended.
        text: the value that was found, in one sentence without a secret.
        advice: an action for the user, or the consequence; empty for none.
    """

    topic: str
    check: str
    state: FindingState
    text: str
    advice: str = ""
