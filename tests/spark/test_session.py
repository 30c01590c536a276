"""What a session of ours does beside Spark's own."""

import socketserver

import pytest

from penstock.spark.runtime.spark_session import _handle_accumulator_error


@pytest.mark.parametrize(("error", "told"), [(EOFError(), False), (ValueError("a defect"), True)])
def test_java_that_goes_away_is_no_news(error, told, capsys):
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        try:
            raise error
        except (EOFError, ValueError):
            _handle_accumulator_error(server, None, ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) is told
