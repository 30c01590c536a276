"""Spark's own SQL parser and analyzer, in a Java process without a session: checks of SQL that take about 3 s."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.spark.runtime.java import choose_java, find_javas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_UNKNOWN_TABLE = "[TABLE_OR_VIEW_NOT_FOUND]"
_MISSING_CATALOG = "FakeV2SessionCatalog"
"""The catalog that the analyzer asks for a function that Spark does not have, and that cannot answer."""
_UNKNOWN_FUNCTION = "it calls a function that Spark does not have"


class SqlError(Exception):
    """The first line of Spark's error about a text."""


class SqlAnalyzer:
    """Parses and analyzes SQL, and evaluates nothing.

    Args:
        jvm: a Java process with the classes of Spark.
        parser: Spark's parser.
        analyzer: Spark's analyzer.
    """

    def __init__(self, jvm: Any, parser: Any, analyzer: Any) -> None:
        self._jvm = jvm
        self._parser = parser
        self._analyzer = analyzer

    @classmethod
    def of_session(cls, spark: SparkSession) -> Self:
        """Return the analyzer of a session, with the functions that its user has registered."""
        session: Any = spark
        state = session._jsparkSession.sessionState()
        return cls(session._jvm, state.sqlParser(), state.analyzer())

    @classmethod
    def of_gateway(cls, gateway: JavaGateway) -> Self:
        """Return an analyzer as that of a new session, with the functions of Spark, and no tables.

        Args:
            gateway: a Java process with the classes of Spark.
        """
        spark = gateway.jvm.org.apache.spark
        catalyst = spark.sql.catalyst
        catalog = catalyst.catalog.InMemoryCatalog(
            spark.SparkConf(), gateway.jvm.org.apache.hadoop.conf.Configuration()
        )
        functions = _find_object(catalyst.analysis, "FunctionRegistry").builtin()
        table_functions = _find_object(catalyst.analysis, "TableFunctionRegistry").builtin()
        known = catalyst.catalog.SessionCatalog(catalog, functions, table_functions)
        return cls(gateway.jvm, _find_object(catalyst.parser, "CatalystSqlParser"), catalyst.analysis.Analyzer(known))

    def check_condition(self, text: str, relation: str | None) -> None:
        """Check that a condition can be evaluated on each row of a stream: as a filter, which takes single rows.

        Raises SqlError if it cannot be.

        Args:
            text: the condition.
            relation: a query in SQL that returns the columns of the stream; None to check only the syntax.
        """
        # Alone first: so text that closes a parenthesis and opens another is no condition.
        _call(lambda: self._parser.parseExpression(text))
        if relation is None:
            return
        # The last line break ends a comment in the text.
        if self._analyze(f"SELECT * FROM ({relation}) WHERE false OR coalesce(({text}\n), false)") is not None:
            _call(lambda: self._check_stream(f"false OR coalesce(({text}\n), false)", relation))

    def _check_stream(self, condition: str, relation: str) -> None:
        """Let Spark check the filter of a stream. It supports less than the filter of a table."""
        spark, scala = self._jvm.org.apache.spark.sql, self._jvm.scala
        logical, nothing = spark.catalyst.plans.logical, _find_object(scala.collection.immutable, "Nil")
        columns = self._analyzer.execute(self._parser.parsePlan(relation)).output()
        stream = logical.LocalRelation(columns, nothing, True, _find_object(scala, "None"))
        plan = self._analyzer.execute(logical.Filter(self._parser.parseExpression(condition), stream))
        checker = _find_object(spark.catalyst.analysis, "UnsupportedOperationChecker")
        checker.checkForStreaming(plan, spark.streaming.OutputMode.Append())

    def read_schema(self, text: str, **relations: str) -> pa.Schema | None:
        """Return the columns of a query's result. Raises SqlError if the query cannot be run.

        Args:
            text: the query.
            relations: the views that it may read, by name, as queries in SQL.

        Returns:
            None if the columns depend on files that only a session reads.
        """
        views = ", ".join(f"{name} AS ({query})" for name, query in relations.items())
        _call(lambda: self._parser.parsePlan(text))
        plan = self._analyze(f"WITH {views} SELECT * FROM ({text}\n)")
        return None if plan is None else to_arrow_schema(StructType.fromJson(json.loads(plan.schema().json())))

    def _analyze(self, text: str) -> Any:
        """Return the plan of a query, None if it reads files.

        Raises:
            SqlError: the query cannot be run.
        """

        def analyze() -> Any:
            plan = self._analyzer.execute(self._parser.parsePlan(text))
            self._analyzer.checkAnalysis(plan)
            return plan

        try:
            return _call(analyze)
        except SqlError as error:
            # Sources of data such as parquet.`path` belong to a session: only a name without a dot is known as wrong.
            if str(error).startswith(_UNKNOWN_TABLE) and "`.`" in str(error):
                return None
            raise


def _find_object(package: Any, name: str) -> Any:
    """Return the instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _call(check: Callable[[], T]) -> T:
    """Return the result of a call of Java.

    Raises:
        SqlError: Java raised an exception.
    """
    try:
        return check()
    except (Py4JJavaError, AnalysisException, ParseException) as error:  # a session translates exceptions of Java
        message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
        text = str(message).strip().partition("\n")[0].rstrip(";")
        # The position is that in the composed query.
        text = re.sub(r"\.? *(SQLSTATE: \w+)?;? *(line \d+ pos \d+|\(line \d+, pos \d+\))?$", "", text)
        raise SqlError(_UNKNOWN_FUNCTION if _MISSING_CATALOG in text else text) from None


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
        yield SqlAnalyzer.of_gateway(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
