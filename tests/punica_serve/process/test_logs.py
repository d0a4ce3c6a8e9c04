import json
import logging
import sys
from collections.abc import Iterator

import pytest

from punica_serve.process.logs import REQUEST_ID, JsonFormatter, TextFormatter, about, room_of


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


def test_what_clients_wrote_makes_no_lines_of_text() -> None:
    line = TextFormatter("frontend").format(record("names %s", "x\r\n09:00 ERROR\x1b[2J\u2028\x85é", gpu="a\nb"))
    assert line.endswith(r'names x\r\n09:00 ERROR\x1b[2J\u2028\x85é gpu="a\nb"')


def test_what_clients_wrote_makes_no_fields_of_text() -> None:
    line = TextFormatter("frontend").format(record("it ended", answer_id='1" outcome=stop', tenant="", outcome="error"))
    assert line.endswith(r'it ended answer_id="1\" outcome=stop" tenant= outcome=error')


def test_a_traceback_keeps_its_lines() -> None:
    broken = record("it failed")
    try:
        raise ValueError("why")
    except ValueError:
        broken.exc_info = sys.exc_info()
    first, *_, last = TextFormatter("frontend").format(broken).splitlines()
    assert first.endswith("frontend WARNING it failed") and last == "ValueError: why"


@pytest.mark.usefixtures("serving")
def test_a_line_logged_while_a_request_is_served_has_its_id_unless_it_names_another() -> None:
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


@pytest.mark.parametrize(
    ("logger", "room"),
    [
        ("punica_frontend.generation.generator", "frontend.generation"),
        ("punica_frontend.main", "frontend"),
        ("punica_scheduler.core.scheduler", "scheduler.core"),
        ("punica_serve.engine.batching.planner", "engine"),
        ("punica_serve.registry.registry", "registry"),
        ("punica_serve.version", "serve"),
        ("uvicorn.error", "uvicorn.error"),
        ("__main__", "__main__"),
    ],
)
def test_a_logger_is_named_by_its_room(logger: str, room: str) -> None:
    assert room_of(logger) == room


def test_a_line_of_json_names_the_room_in_place_of_the_module() -> None:
    line = record("x")
    line.name = "punica_frontend.generation.generator"
    assert json.loads(JsonFormatter("frontend").format(line))["logger"] == "frontend.generation"
