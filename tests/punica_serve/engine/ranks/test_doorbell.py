"""A bell loses no ring, and an inbox finds what was written before it slept."""

import select
import threading

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.message_ring import RingReader, RingWriter, make_ring
from punica_serve.engine.ranks.rank_inbox import RankInbox
from waits import DEADLINE_S


def test_a_ring_before_the_wait_ends_it_at_once() -> None:
    bell = Doorbell()
    bell.ring()
    bell.ring()
    bell.wait(60.0)
    bell.wait(0.0)  # both rings are taken, and nothing is left to wait for
    bell.close()


def test_an_inbox_gets_every_frame_whether_it_sleeps_or_not() -> None:
    fd, bell = make_ring(1 << 12, 1), Doorbell()
    writer = RingWriter(fd, 1)
    inbox = RankInbox(RingReader(fd, 1, 0), Doorbell(bell.fd), poll_s=0.0, has_work=lambda: False)
    frames = [bytes([number]) for number in range(100)]

    def write() -> None:
        for frame in frames:
            writer.write(frame, DEADLINE_S)
            bell.ring()

    thread = threading.Thread(target=write)
    thread.start()
    assert [inbox.take() for _ in frames] == frames
    thread.join(DEADLINE_S)
    bell.close()


def test_an_inbox_sleeps_only_without_work_and_finds_old_rings_forgotten() -> None:
    fd, bell = make_ring(1 << 12, 1), Doorbell()
    writer = RingWriter(fd, 1)
    slept_s: list[float] = []
    answers = iter([True, True, False])

    class Bell(Doorbell):
        def wait(self, timeout_s: float) -> None:
            super().wait(0.0)
            if timeout_s:
                slept_s.append(timeout_s)
                writer.write(b"after the sleep", 1.0)

    writer.write(b"at once", 1.0)
    bell.ring()
    inbox = RankInbox(RingReader(fd, 1, 0), Bell(bell.fd), poll_s=0.001, has_work=lambda: next(answers))
    assert inbox.take() == b"at once"
    assert not slept_s
    assert inbox.take() == b"after the sleep"
    assert len(slept_s) == 1, "it polled as long as there was work"
    assert next(answers, None) is None
    assert not select.select([bell.fd], [], [], 0.0)[0]
    bell.close()
