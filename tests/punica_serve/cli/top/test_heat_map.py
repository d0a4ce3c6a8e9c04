import pytest
from rich.color import Color, ColorSystem
from rich.text import Text

from punica_serve.cli.top.display import Display
from punica_serve.cli.top.event_kinds import EventKind, kind_of, kinds_by_cell
from punica_serve.cli.top.heat_columns import HeatColumn
from punica_serve.cli.top.heat_map import heat_row, legend, step_of, time_axis

BATCH_SIZES = (None, 0.0, *(4.0 * step for step in range(1, 9)))
COLUMNS = [HeatColumn(at_s, {} if mean is None else {"a": mean}) for at_s, mean in enumerate(BATCH_SIZES)]
NOTHING: dict[tuple[str, int], EventKind] = {}
LOST = kind_of({"kind": "gpu_lost"})

ASCII = Display(80, 24, is_ascii=True)
UNICODE = Display(80, 24)
COLORS = Display(80, 24, has_colors=True)


def row(display: Display, events: dict[tuple[str, int], EventKind] = NOTHING) -> Text:
    return heat_row("a", COLUMNS, 32, events, display)


def backgrounds(text: Text) -> list[Color | None]:
    """The background of each character."""
    found: list[Color | None] = [None] * len(text)
    for start, end, style in text.spans:
        if not isinstance(style, str):
            found[start:end] = [style.bgcolor] * (end - start)
    return found


@pytest.mark.parametrize(
    ("batch_size", "step"), [(None, None), (0.0, 0), (0.01, 1), (4.0, 1), (4.01, 2), (16, 4), (31, 8), (32, 8), (40, 8)]
)
def test_any_use_is_above_idle_and_a_full_batch_is_the_top(batch_size: float | None, step: int | None) -> None:
    assert step_of(batch_size, 32) == step


def test_without_colours_characters_grow_denser() -> None:
    assert row(ASCII).plain == " .:-=+*#%@"
    assert row(UNICODE).plain == " ·▁▂▃▄▅▆▇█"


@pytest.mark.parametrize("system", [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT])
def test_each_step_has_a_colour_of_its_own_that_is_lighter(system: ColorSystem) -> None:
    absent, *steps = backgrounds(row(COLORS))
    colors = [color.downgrade(system).get_truecolor() for color in steps if color]
    lightness = [0.2126 * color.red + 0.7152 * color.green + 0.0722 * color.blue for color in colors]
    assert absent is None and len(colors) == 9
    assert lightness == sorted(lightness) and len(set(colors)) == 9


def test_idle_is_not_absent_even_on_a_black_terminal() -> None:
    assert row(COLORS).plain[:3] == " · "
    assert heat_row("a", COLUMNS, 32, NOTHING, Display(80, 24, is_ascii=True, has_colors=True)).plain[:3] == " . "


@pytest.mark.parametrize("display", [ASCII, UNICODE, COLORS])
def test_an_event_is_a_letter_on_its_cell(display: Display) -> None:
    text = row(display, {("a", 0): LOST, ("a", 9): LOST, ("b", 5): LOST})
    assert (text.plain[0], text.plain[9]) == ("X", "X") and text.plain.count("X") == 2
    assert backgrounds(text) == backgrounds(row(display))


def test_the_most_important_event_of_a_cell_is_drawn() -> None:
    marks = [
        {"kind": "migrated", "at_ns": 5_100_000_000, "gpu_uuids": ["a", "b"]},
        {"kind": "gpu_lost", "at_ns": 5_900_000_000, "gpu_uuids": ["a"]},
        {"kind": "scheduler_started", "at_ns": 0, "gpu_uuids": []},
        {"kind": "of_tomorrow", "at_ns": 0, "gpu_uuids": ["a"]},
    ]
    letters = {cell: kind.letter for cell, kind in kinds_by_cell(marks).items()}
    assert letters == {("a", 5): "X", ("b", 5): "M", ("a", 0): "!"}
    assert kind_of(marks[3]).words == "of tomorrow"


def test_the_legend_has_the_scale_and_the_letters() -> None:
    text = legend({32}, [kind_of({"kind": "migrated"}), LOST, LOST], ASCII)
    assert text.plain == "mean batch size 0 .:-=+*#%@ 32  (blank: not in the cluster)  X lost  M moved"
    assert " full  " in legend({16, 32}, [], ASCII).plain
    assert len([color for color in backgrounds(legend({32}, [], COLORS)) if color]) == 9


@pytest.mark.parametrize("width", [1, 2, 3, 12, 40])
@pytest.mark.parametrize("num_columns", [1, 12, 40])
def test_the_axis_ends_now(num_columns: int, width: int) -> None:
    text = time_axis(min(num_columns, width), width).plain
    assert len(text) == width and text.endswith("now"[:width])
    if width == 40 and num_columns > 12:
        assert text.startswith("40 s ago ")
