"""The ring between a leader and its ranks."""

import os
from random import Random

import pytest

from punica_serve.engine.ranks.message_ring import RingReader, RingStuck, RingWriter, make_ring


def test_frames_arrive_whole_and_in_order_at_every_reader_however_they_wrap() -> None:
    fd = make_ring(256, 2)
    writer, readers = RingWriter(fd, 2), [RingReader(fd, 2, index) for index in range(2)]
    random = Random(0)
    for _ in range(500):
        frames = [random.randbytes(random.randrange(60)) for _ in range(random.randrange(4))]
        for frame in frames:
            writer.write(frame, 1.0)
        for reader in readers:
            assert [reader.read() for _ in frames] == frames
            assert reader.read() is None
    os.close(fd)


def test_a_reader_that_does_not_read_stops_the_writer_in_time_and_is_named() -> None:
    fd = make_ring(64, 2)
    writer, reader = RingWriter(fd, 2), RingReader(fd, 2, 0)
    writer.write(bytes(40), 1.0)
    assert reader.read() == bytes(40)
    with pytest.raises(RingStuck, match=r"reader 1 has read nothing for 0\.01 s"):
        writer.write(bytes(40), 0.01)


def test_the_writer_sees_when_each_reader_launched_and_what_it_has_read() -> None:
    fd = make_ring(64, 2)
    writer, readers = RingWriter(fd, 2), [RingReader(fd, 2, index) for index in range(2)]
    readers[1].tell_launch(1 << 60)
    assert [writer.launched_ns(index) for index in range(2)] == [0, 1 << 60]
    for _ in range(3):
        writer.write(bytes(40), 1.0)
        assert [reader.read() for reader in readers] == [bytes(40)] * 2
    assert writer.launched_ns(1) == 1 << 60
    os.close(fd)


def test_a_frame_larger_than_the_ring_is_refused() -> None:
    writer = RingWriter(make_ring(64, 1), 1)
    with pytest.raises(ValueError, match="a frame of 64 bytes exceeds the ring's 64"):
        writer.write(bytes(64), 1.0)


def test_a_damaged_frame_is_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.engine.ranks.message_ring._TORN_S", 0.01)
    fd = make_ring(64, 1)
    RingWriter(fd, 1).write(b"step", 1.0)
    memory = RingReader(fd, 1, 0)
    os.pwrite(fd, b"x", os.fstat(fd).st_size - 64 + 8)
    with pytest.raises(RingStuck, match="damaged"):
        memory.read()
