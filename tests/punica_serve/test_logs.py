import json
import logging
import sys
from collections.abc import Iterator

import pytest

from punica_serve.logs import REQUEST_ID, JsonFormatter, TextFormatter, about


@pytest.fixture
def serving() -> Iterator[None]:
    token = REQUEST_ID.set("r-1")
    yield
    REQUEST_ID.reset(token)


def record(message: str, *values: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("room", logging.WARNING, __file__, 1, message, values, None)
    made.__dict__.update(about(**fields))
    return made


def test_a_line_of_json_says_what_it_is_about() -> None:
    line = JsonFormatter("worker 0").format(record("it %s\nso", "is", gpu="GPU-1", tokens=3, tenant=None))
    assert "\n" not in line
    read = json.loads(line)
    assert read.pop("time").endswith("+00:00")
    assert read == {
        "level": "warning",
        "process": "worker 0",
        "logger": "room",
        "message": "it is\nso",
        "gpu": "GPU-1",
        "tokens": 3,
    }


def test_a_line_of_text_says_the_same() -> None:
    line = TextFormatter("worker 0").format(record("it is", gpu="GPU-1", tokens=3))
    assert line.endswith("worker 0 WARNING it is gpu=GPU-1 tokens=3")


@pytest.mark.usefixtures("serving")
def test_what_is_logged_while_a_request_is_served_is_about_it_unless_it_says_otherwise() -> None:
    formatter = JsonFormatter("frontend")
    assert json.loads(formatter.format(record("x")))["request_id"] == "r-1"
    assert json.loads(formatter.format(record("x", request_id="r-1-a")))["request_id"] == "r-1-a"


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        failed = record("x")
        failed.exc_info = sys.exc_info()
    assert "ValueError: no" in json.loads(JsonFormatter("frontend").format(failed))["exception"]
