from pathlib import Path

import pytest

from punica_serve.errors import ConfigError
from punica_serve.performance.attention_table import (
    AttentionTable,
    AttentionTime,
    load_table,
    shipped_table,
    shipped_tables,
    write_table,
)

TIME = AttentionTime(
    heads=32, kv_heads=8, head_dim=128, prompts=1, new_tokens=512, context=4096, triton_us=2.5, flashinfer_us=1.0
)


def test_a_written_table_reads_the_same(tmp_path: Path) -> None:
    table = AttentionTable(version=1, device="d", source="s", times=(TIME, TIME))
    write_table(table, tmp_path / "new" / "t.yaml")
    assert load_table(tmp_path / "new" / "t.yaml") == table


@pytest.mark.parametrize(
    ("text", "says"), [("version: 1", "`device`"), ("version: 2\ntimes: []", "`version`"), ("- 1", "must be a mapping")]
)
def test_a_wrong_table_is_refused_by_field(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_table(tmp_path / "t.yaml")


def test_the_shipped_tables_are_whole() -> None:
    tables = shipped_tables()
    assert len({table.device for table in tables}) == len(tables)
    assert all(time.context * time.prompts >= time.new_tokens for table in tables for time in table.times)
    assert shipped_table("a GPU that nobody measured") is None
