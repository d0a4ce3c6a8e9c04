"""Sections side by side, copied as one."""

import numpy as np
import pytest
import torch

from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer


def _buffer() -> StepInputBuffer:
    return StepInputBuffer({"sources": 3, "positions": 40, "kv_pages": 8}, torch.device("cpu"))


def test_sections_start_at_cache_lines_and_do_not_overlap() -> None:
    buffer = _buffer()
    starts = [
        buffer.device(name).data_ptr() - buffer.device("sources").data_ptr()
        for name in ("sources", "positions", "kv_pages")
    ]
    assert starts == [0, 128, 128 + 256]


def test_what_is_written_is_on_the_device_after_the_copy() -> None:
    buffer = _buffer()
    buffer.write("positions", np.arange(5, dtype=np.int32))
    buffer.array("sources")[:] = 7
    assert not buffer.device("positions").any()
    buffer.copy_to_device()
    assert buffer.device("positions")[:6].tolist() == [0, 1, 2, 3, 4, 0]
    assert buffer.device("sources").tolist() == buffer.array("sources").tolist() == [7, 7, 7]


def test_of_the_last_part_only_what_was_written_is_copied() -> None:
    buffer = _buffer()
    buffer.write("kv_pages", np.full(8, 5, dtype=np.int32))
    buffer.copy_to_device()
    buffer.write("kv_pages", np.full(2, 6, dtype=np.int32))
    buffer.array("kv_pages")[2:] = 9
    buffer.copy_to_device()
    assert buffer.device("kv_pages").tolist() == [6, 6, 5, 5, 5, 5, 5, 5]


def test_too_many_words_are_refused() -> None:
    with pytest.raises(ValueError):
        _buffer().write("sources", np.zeros(4, dtype=np.int32))
