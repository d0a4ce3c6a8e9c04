from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from punica_serve.links.outgoing import LINGER_S, MAX_JOINED_BYTES, OutgoingMessages


@given(st.lists(st.integers(0, 2 * MAX_JOINED_BYTES), max_size=12))
def test_all_messages_leave_in_order_in_as_few_frames_as_they_fit(sizes: list[int]) -> None:
    queue = OutgoingMessages()
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    for message in messages:
        queue.add(message)
    frames: list[list[bytes]] = []
    while queue:
        assert queue.num_bytes == sum(sizes) - sum(len(message) for frame in frames for message in frame)
        frames.append(queue.take_frame(0.0))
    assert queue.num_bytes == 0
    assert [message for frame in frames for message in frame] == messages
    for frame in frames:
        assert len(frame) == 1 or sum(map(len, frame)) <= MAX_JOINED_BYTES
    for frame, following in pairwise(frames):
        assert sum(map(len, frame)) + len(following[0]) > MAX_JOINED_BYTES


def test_two_frames_leave_before_one_lingers() -> None:
    queue = OutgoingMessages()
    for now in (10.0, 10.001):
        assert queue.lingers_until < now
        queue.add(b"m")
        queue.take_frame(now)
    assert queue.lingers_until == 10.0 + LINGER_S > 10.001


def test_nothing_is_left_of_dropped_messages() -> None:
    queue = OutgoingMessages()
    queue.add(b"dropped")
    queue.clear()
    assert not queue and queue.num_bytes == 0
