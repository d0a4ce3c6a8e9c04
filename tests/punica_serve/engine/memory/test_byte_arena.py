from hypothesis import given
from hypothesis import strategies as st

from punica_serve.engine.memory.byte_arena import ByteArena

PAGE = 4096


@given(st.lists(st.one_of(st.integers(1, 5 * PAGE), st.integers(-8, -1)), max_size=60))
def test_pieces_never_overlap_and_an_empty_arena_is_whole_again(orders: list[int]) -> None:
    """A number is a piece to take, or with a minus the place of one to give back."""
    arena = ByteArena(20 * PAGE + 7)
    pieces: list[tuple[int, int]] = []
    for order in orders:
        if order > 0:
            start = arena.allocate(order)
            if start is not None:
                pieces.append((start, order))
        elif len(pieces) >= -order:
            arena.free(*pieces.pop(order))
        ends = [0, *(start + size for start, size in sorted(pieces))]
        assert all(end <= start for end, (start, _) in zip(ends, sorted(pieces), strict=False))
        assert ends[-1] <= 20 * PAGE
        assert arena.used_bytes == sum(-(-size // PAGE) * PAGE for _, size in pieces)
    for piece in pieces:
        arena.free(*piece)
    assert arena.allocate(20 * PAGE) == 0


def test_a_thousand_adapters_of_a_7b_model_fit_into_84_gb() -> None:
    """Rank 16 on all projections in half precision takes 79,953,920 bytes."""
    arena = ByteArena(84 * 10**9)
    assert all(arena.allocate(79_953_920) is not None for _ in range(1000))


def test_what_could_never_fit_is_known() -> None:
    arena = ByteArena(2 * PAGE)
    assert arena.could_fit(PAGE + 1) and not arena.could_fit(2 * PAGE + 1)
    assert arena.allocate(1) == 0 and arena.could_fit(2 * PAGE)
