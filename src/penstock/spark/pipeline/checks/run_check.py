"""A check before a run, and the walk through a list of checks.

Each check declares its needs beyond the file and the tables. A command that only looks does not allow all of them. So
it runs no program that the file names. It reports the checks that were not made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Flag, auto

from penstock.errors import Error, UsageError
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.checks.value_fields import find_fields
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.runtime.sql_analyzer import SqlAnalyzer
from penstock.spark.source.source_schema import infer_fields


class Need(Flag):
    """The needs of a check beyond the file and the tables.

    Attributes:
        PROGRAMS: it runs a program that the file names: a transform, a command, or a provider of secrets.
        NETWORK: it connects to a host that the file names.
        LOCK: it asks whether another run writes the lake. The run itself takes the lock.
        SQL: it needs Spark's analyzer, which is a Java process.
    """

    NOTHING = 0
    PROGRAMS = auto()
    NETWORK = auto()
    LOCK = auto()
    SQL = auto()

    def describe(self) -> str:
        """Return the needs in words, for a check that was not made."""
        words = {
            Need.PROGRAMS: "it runs a program that the file names",
            Need.NETWORK: "it connects to a host that the file names",
            Need.LOCK: "it asks for the lock of the lake",
            Need.SQL: "it needs Spark",
        }
        return " and ".join(text for need, text in words.items() if need in self)


@dataclass(frozen=True, slots=True)
class Check:
    """One question before a run.

    Attributes:
        subject: the checked part, for people.
        source: the source whose tables depend on it; None if it concerns the whole pipeline.
        ask: raises Error if a run would fail. Returns a line about the answer, or None.
        needs: its needs.
        is_vital: whether a run ends by any failure. Otherwise the run starts, and tries again: only a UsageError, which
            no further attempt can mend, ends it.
    """

    subject: str
    source: SourceDefinition | None
    ask: Callable[[CheckContext], str | None]
    needs: Need = Need.NOTHING
    is_vital: bool = True


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of a check.

    Attributes:
        check: the check.
        line: a line about the answer.
        error: the reason why a run would fail.
        missing: the needs that were not allowed; the check was not made then.
    """

    check: Check
    line: str | None = None
    error: Error | None = None
    missing: Need = Need.NOTHING

    @property
    def refusal(self) -> Error | None:
        """The error with which a run would end before it reads anything."""
        return self.error if self.check.is_vital or isinstance(self.error, UsageError) else None


@dataclass(slots=True)
class CheckContext:
    """The state that the checks of one walk share.

    Attributes:
        buckets: asks each bucket once.
        allowed: the needs that are met.
        analyzer: Spark's analyzer, for checks that need it.
        fields: the fields of values as DDL, by the name of the source, that were inferred from the bucket.
    """

    buckets: BucketAnswers
    allowed: Need
    analyzer: SqlAnalyzer | None = None
    fields: dict[str | None, str] = field(default_factory=dict)

    def find_fields(self, source: SourceDefinition, lake: LakeDirectory) -> str | None:
        """Return the fields of a source's values as DDL; None if they are in the bucket, which may not be asked.

        Raises UsageError if the bucket has no values to infer them from.
        """
        found = find_fields(source, lake) or self.fields.get(source.name)
        options = source.parse_options()
        if found is None and need_login(options.login_runs_program) in self.allowed:
            self.buckets.ask_source(options.address)  # a bucket that is away was waited for already
            found = self.fields[source.name] = infer_fields(options)
        return found


def need_login(runs_program: bool) -> Need:
    """Return the needs of a connection.

    Args:
        runs_program: whether its login runs a program.
    """
    return Need.NETWORK | Need.PROGRAMS if runs_program else Need.NETWORK


def walk_checks(checks: Sequence[Check], context: CheckContext) -> Iterator[CheckFinding]:
    """Make the checks that the context allows. Those with the network are made at once, but reported in order.

    Args:
        checks: the checks, in the order of a run.
        context: the state that they share.

    Yields:
        A finding for each check.
    """
    begun: dict[int, Future[CheckFinding]] = {}
    for number, check in enumerate(checks):
        if Need.NETWORK in check.needs and not begun:
            begun = {
                later: _start_check(each, context)
                for later, each in enumerate(checks)
                if Need.NETWORK in each.needs and each.needs in context.allowed
            }
        yield begun[number].result() if number in begun else _make_check(check, context)


def _start_check(check: Check, context: CheckContext) -> Future[CheckFinding]:
    """Return the future of a check that runs on its own thread, which does not delay the end of the program."""
    found: Future[CheckFinding] = Future()

    def work() -> None:
        try:
            found.set_result(_make_check(check, context))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            found.set_exception(error)

    threading.Thread(target=work, name="penstock-check", daemon=True).start()
    return found


def _make_check(check: Check, context: CheckContext) -> CheckFinding:
    missing = check.needs & ~context.allowed
    if missing:
        return CheckFinding(check, missing=missing)
    try:
        return CheckFinding(check, check.ask(context))
    except Error as error:
        return CheckFinding(check, error=error)


def raise_first_refusal(checks: Sequence[Check], context: CheckContext) -> None:
    """Make checks until one would end a run, and raise its error."""
    for finding in walk_checks(checks, context):
        if finding.refusal is not None:
            raise finding.refusal
