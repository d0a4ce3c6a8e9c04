import pytest

from punica_serve.counted import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_no_plural(count: int, said: str) -> None:
    assert counted(count, "GPU") == said
