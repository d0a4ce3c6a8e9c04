from pathlib import Path

import pytest

from punica_serve.config.cluster import load_config
from punica_serve.config.placement_name import SHIPPED_PLACEMENTS, is_own, label_of, placement_name


@pytest.mark.parametrize("name", SHIPPED_PLACEMENTS)
def test_a_shipped_policy_has_its_name(name: str) -> None:
    assert placement_name(name, Path("/x")) == label_of(name) == name and not is_own(name)


def test_a_file_is_relative_to_the_folder(tmp_path: Path) -> None:
    name = placement_name("mine/best.py:Best", tmp_path)
    assert name == f"{tmp_path}/mine/best.py:Best"
    assert is_own(name) and label_of(name) == "Best"


@pytest.mark.parametrize("text", ["", "best", "best.py", "best.py:", "best.py:a b", "best:Best", ":Best"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be 'punica', .*'consolidate_slo', or your own as FILE.py:CLASS"):
        placement_name(text, Path("/x"))


def test_a_configs_file_is_relative_to_the_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "engine: {model: m}\nscheduler: {placement: 'best.py:Best'}\n"
        "simulation: {compare: [punica, 'best.py:Best'], goals: {a: {'best.py:Best': {kept: 0.5}}}}"
    )
    config, name = load_config(tmp_path / "c.yaml"), f"{tmp_path}/best.py:Best"
    assert config.scheduler.placement == name
    assert config.simulation.compare == ("punica", name)
    assert list(config.simulation.goals["a"]) == [name]
