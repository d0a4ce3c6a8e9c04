"""Parts of words side by side, copied as one."""

import numpy as np
import pytest
import torch

from punica_serve.engine.step_words import StepWords


def _words() -> StepWords:
    return StepWords({"a": 3, "b": 40, "pages": 8}, torch.device("cpu"))


def test_parts_start_at_cache_lines_and_do_not_overlap() -> None:
    words = _words()
    starts = [words.device(name).data_ptr() - words.device("a").data_ptr() for name in ("a", "b", "pages")]
    assert starts == [0, 128, 128 + 256]


def test_what_is_written_is_on_the_device_after_the_copy() -> None:
    words = _words()
    words.write("b", np.arange(5, dtype=np.int32))
    words.words("a")[:] = 7
    assert not words.device("b").any()
    words.queue()
    assert words.device("b")[:6].tolist() == [0, 1, 2, 3, 4, 0]
    assert words.device("a").tolist() == words.host("a").tolist() == [7, 7, 7]


def test_of_the_last_part_only_what_was_written_is_copied() -> None:
    words = _words()
    words.write("pages", np.full(8, 5, dtype=np.int32))
    words.queue()
    words.write("pages", np.full(2, 6, dtype=np.int32))
    words.words("pages")[2:] = 9
    words.queue()
    assert words.device("pages").tolist() == [6, 6, 5, 5, 5, 5, 5, 5]


def test_too_many_words_are_refused() -> None:
    with pytest.raises(ValueError):
        _words().write("a", np.zeros(4, dtype=np.int32))
