"""The numbers that benchmarks take: a typing error ends with a line that says so, and sizes nothing."""

from typing import get_args, get_type_hints

import pytest
from typer.main import get_command_name
from typer.models import OptionInfo
from typer.testing import CliRunner

from punica_serve.cli.bench import app

_NUMBERS = {int, float, int | None, float | None, list[int], list[int] | None}


def _number_options() -> dict[tuple[str, str], OptionInfo]:
    """By the names of command and option."""
    found = {}
    for command in app.registered_commands:
        assert command.callback is not None and command.name is not None
        for parameter, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *options = get_args(hint) or (hint,)
            if kind in _NUMBERS:
                names = options[0].param_decls or [f"--{get_command_name(parameter)}"]
                found[command.name, names[0]] = options[0]
    return found


def test_every_number_has_a_least_and_a_most() -> None:
    options = _number_options()
    assert len(options) > 50
    assert [names for names, option in options.items() if option.min is None or option.max is None] == []


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000, "-1", "nan"])
@pytest.mark.parametrize(("command", "option"), list(_number_options())[::7])
def test_another_number_ends_with_the_name_of_its_option(command: str, option: str, text: str) -> None:
    outcome = CliRunner().invoke(app, [command, option, text])
    assert outcome.exit_code == 2 and f"Invalid value for '{option}'" in outcome.output
