"""The table [lineage] of a pipeline's file: the receiver of its events."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.login.password_options import REFERENCE
from penstock.errors import UsageError
from penstock.options import COMMAND, FILE, TEXT, check_limits, nonempty, number, option
from penstock.spark.dependents.posting import HeaderSource, HttpPoster, RetryPolicy

_PATIENCE = RetryPolicy(timeout=5.0, retries=1, backoff=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageSettings:
    """Events of OpenLineage about the runs of a pipeline. They go to a server or a file.

    Attributes:
        headers_env: the environment variable with headers, such as an Authorization header.
    """

    url: str | None = option(
        nonempty("a URL"), "address of the server, to which each event is posted", default=None, secret=True
    )
    file: str | None = option(FILE, "file that gets each event as a line of JSON", default=None)
    namespace: str = option(TEXT, "namespace of the jobs", default="penstock")
    job: str | None = option(TEXT, "name of the pipeline", default=None, shown="the last part of the lake's place")
    every_seconds: float = option(number(0, 86400), "seconds between two events about the progress", default=60.0)
    headers_file: str | None = option(FILE, "headers of the requests, such as one that logs in", default=None)
    headers_command: tuple[str, ...] | None = option(
        COMMAND, "program and arguments; the first line of its output is a header", default=None, secret=True
    )
    headers_from: str | None = option(REFERENCE, "an installed provider of secrets, and its reference", default=None)
    headers_env: str | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        if (self.url is None) == (self.file is None):
            raise UsageError("expected either url or file")
        if self.url is not None:
            self.make_poster().close()
        elif HeaderSource.of_declaration(self).is_given:
            raise UsageError("headers are for url, and file is given")

    def make_poster(self) -> HttpPoster:
        """Return a sender to the server. Raises UsageError for an invalid address or headers that cannot be read."""
        return HttpPoster(str(self.url), _PATIENCE, HeaderSource.of_declaration(self))
