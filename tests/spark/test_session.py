"""The changes that Penstock makes to a Spark session."""

import socketserver

import pytest

from penstock.spark.runtime.spark_session import _handle_accumulator_error


@pytest.mark.parametrize(("error", "is_reported"), [(EOFError(), False), (ValueError("a defect"), True)])
def test_end_of_java_is_not_reported_but_defects_are(error, is_reported, capsys):
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        try:
            raise error
        except (EOFError, ValueError):
            _handle_accumulator_error(server, None, ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) is is_reported
