"""Types that several threads decode into at once, from the first time on."""

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import msgspec
import pytest

import punica_frontend
import punica_kernels
import punica_runner
import punica_scheduler
import punica_serve
from punica_serve.learned_types import learned

_DEADLINE_S = 60.0
_PACKAGES = (punica_frontend, punica_kernels, punica_runner, punica_scheduler, punica_serve)
#: Where msgspec's functions take a type: its place among the arguments, and its name.
_TYPE_ARGUMENTS = {"decode": (1, "type"), "Decoder": (0, "type"), "convert": (1, "type")}
#: Types without structs, which there is nothing to learn of.
_SIMPLE = ("list[int]", "dict[str, msgspec.Raw]", "_ids_below(vocab_size)")


def test_a_type_is_handed_out_only_when_all_of_it_is_known() -> None:
    is_asked, may_go_on = Event(), Event()

    class Slow(type):
        """Types that msgspec, which looks them up by their hashes, learns slowly."""

        def __hash__(cls) -> int:
            is_asked.set()
            assert may_go_on.wait(_DEADLINE_S)
            return super().__hash__()

    class Field(metaclass=Slow):
        pass

    class Record(msgspec.Struct):
        number: int
        field: Field | None = None

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(learned, Record)
        assert is_asked.wait(_DEADLINE_S)
        second = threads.submit(learned, Record)
        early = wait([second], 0.2).done
        may_go_on.set()
        assert not early
        assert first.result(_DEADLINE_S) is second.result(_DEADLINE_S) is Record
    assert msgspec.json.decode(b'{"number": 7}', type=Record).number == 7


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: package.__name__)
def test_msgspec_is_given_learned_types_alone(package: object) -> None:
    """A type that two threads make msgspec learn at once ends the process."""
    (folder,) = package.__path__  # type: ignore[attr-defined]
    files = [path for path in Path(folder).rglob("*.py") if path.name != "learned_types.py"]
    unlearned = [f"{path}:{line}: {kind}" for path in files for line, kind in _given_types(path)]
    assert unlearned == []


def _given_types(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the type of each call that gives msgspec a type which may not be learned."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("msgspec."):
            kind = _type_argument(node)
            if kind is not None and not kind.startswith("learned(") and kind not in _SIMPLE:
                yield node.lineno, kind


def _type_argument(call: ast.Call) -> str | None:
    place, name = _TYPE_ARGUMENTS.get(ast.unparse(call.func).rpartition(".")[2], (0, ""))
    if not name:
        return None
    named = (keyword.value for keyword in call.keywords if keyword.arg == name)
    return next((ast.unparse(kind) for kind in (*call.args[place : place + 1], *named)), None)
