"""Spark's own SQL parser and analyzer, in a Java process without a session: checks of SQL that take about 3 s."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from penstock.errors import UsageError
from penstock.spark.runtime.java import choose_java, find_javas

__all__ = ["SqlAnalyzer", "open_analyzer"]

_UNKNOWN_TABLE = "[TABLE_OR_VIEW_NOT_FOUND]"
_MISSING_CATALOG = "FakeV2SessionCatalog"
"""The catalog that the analyzer asks for a function that Spark does not have, and that cannot answer."""
_UNKNOWN_FUNCTION = "it calls a function that Spark does not have"


class SqlAnalyzer:
    """Parses and analyzes SQL as a new session of Spark does. It has the functions of Spark, and no tables.

    Args:
        gateway: a Java process with the classes of Spark.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        spark = gateway.jvm.org.apache.spark
        catalyst = spark.sql.catalyst
        self._parser = _find_object(catalyst.parser, "CatalystSqlParser")
        catalog = catalyst.catalog.InMemoryCatalog(
            spark.SparkConf(), gateway.jvm.org.apache.hadoop.conf.Configuration()
        )
        functions = _find_object(catalyst.analysis, "FunctionRegistry").builtin()
        table_functions = _find_object(catalyst.analysis, "TableFunctionRegistry").builtin()
        self._analyzer = catalyst.analysis.Analyzer(
            catalyst.catalog.SessionCatalog(catalog, functions, table_functions)
        )

    def find_condition_error(self, text: str, relation: str | None) -> str | None:
        """Return why a condition cannot be evaluated on each row of a relation, None if it can be.

        Args:
            text: the condition.
            relation: a query in SQL that returns the relation; None to check only the syntax.
        """
        # Alone first: so text that closes a parenthesis and opens another is no condition.
        error = _find_error(lambda: self._parser.parseExpression(text))
        if error is not None or relation is None:
            return error
        # The last line break ends a comment in the text.
        return self._find_query_error(f"SELECT false OR coalesce(({text}\n), false) FROM ({relation})")

    def find_query_error(self, text: str, **relations: str) -> str | None:
        """Return why a query cannot be run, None if it can be.

        Args:
            text: the query.
            relations: the views that it may read, by name, as queries in SQL.
        """
        views = ", ".join(f"{name} AS ({query})" for name, query in relations.items())
        return _find_error(lambda: self._parser.parsePlan(text)) or self._find_query_error(
            f"WITH {views} SELECT * FROM ({text}\n)"
        )

    def _find_query_error(self, text: str) -> str | None:
        def analyze() -> None:
            plan = self._analyzer.execute(self._parser.parsePlan(text))
            self._analyzer.checkAnalysis(plan)

        error = _find_error(analyze)
        # Sources of data such as parquet.`path` belong to a session: only a name without a dot is known to be wrong.
        return None if error is not None and error.startswith(_UNKNOWN_TABLE) and "`.`" in error else error


def _find_object(package: Any, name: str) -> Any:
    """Return the instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _find_error(check: Any) -> str | None:
    """Return the first line of the error that a call raises in Java, None without an error."""
    try:
        check()
    except Py4JJavaError as error:
        text = str(error.java_exception.getMessage()).strip().partition("\n")[0].rstrip(";")
        # The position is that in the composed query.
        text = re.sub(r"\.? *(SQLSTATE: \w+)?;? *(line \d+ pos \d+|\(line \d+, pos \d+\))?$", "", text)
        return _UNKNOWN_FUNCTION if _MISSING_CATALOG in text else text
    return None


@contextmanager
def open_analyzer() -> Iterator[SqlAnalyzer]:
    """Start a Java process, and end it after the block.

    Yields:
        An analyzer.

    Raises:
        UsageError: Spark is not complete. Also if there is no fitting Java.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    server = next(jars.glob("py4j*.jar"), None)
    if server is None:
        raise UsageError(f"{jars} does not hold the classes of Spark; expected those of the package pyspark")
    port, token, process = launch_gateway(
        jarpath=str(server),
        classpath=str(jars / "*"),
        java_path=str(choose_java(find_javas(os.environ)).home / "bin" / "java"),
        javaopts=["-XX:TieredStopAtLevel=1"],  # a short life: faster compilation pays, faster code does not
        enable_auth=True,
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield SqlAnalyzer(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
