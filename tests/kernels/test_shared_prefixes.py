"""Which requests' page tables begin alike."""

from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from punica_kernels.shared_prefixes import MIN_PREFIX_TOKENS, NO_GROUPS, PrefixGroups, PrefixGroupTracker

PAGE_SIZE = 64
MIN_PAGES = MIN_PREFIX_TOKENS // PAGE_SIZE

Groups = dict[frozenset[int], int]


def _as_dict(found: PrefixGroups) -> Groups:
    """The pages of each group's prefix."""
    members = [found.requests[first:end].tolist() for first, end in pairwise(found.starts.tolist())]
    return dict(zip(map(frozenset, members), found.num_pages.tolist(), strict=True))


def _groups(prefixes: list[list[int]]) -> Groups:
    """The groups of requests that begin with these pages, and end with one of their own."""
    return _as_dict(PrefixGroupTracker(PAGE_SIZE).groups([[*pages, 1000 + row] for row, pages in enumerate(prefixes)]))


def _num_equal(one: list[int], other: list[int]) -> int:
    return next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def _plain_groups(tables: list[list[int]]) -> Groups:
    """Sorts all tables, and parts neighbours that share too little."""
    order = sorted(range(len(tables)), key=tables.__getitem__)
    common = [0, *(_num_equal(tables[one], tables[other]) for one, other in pairwise(order)), 0]
    found: Groups = {}
    members: list[int] = []
    num_pages: list[int] = []
    for place, request in enumerate(order, 1):
        members.append(request)
        before, here, after = [*common, 0][place - 1 : place + 2]
        if here >= MIN_PAGES and 2 * here >= max(before, after):
            num_pages.append(here)
            continue
        if len(members) > 1:
            found[frozenset(members)] = min(num_pages)
        members, num_pages = [], []
    return found


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=9))
def test_groups_share_what_they_say_and_no_page_of_their_own(prefixes: list[list[int]]) -> None:
    """Few page numbers, so that tables begin alike by chance, and have equal pages behind different ones."""
    found = _groups(prefixes)
    members = [request for group in found for request in group]
    assert len(members) == len(set(members))
    for group, num_pages in found.items():
        assert len(group) >= 2 and num_pages >= MIN_PAGES
        assert len({tuple(prefixes[request][:num_pages]) for request in group}) == 1
        assert all(num_pages <= len(prefixes[request]) for request in group)


class Steps(RuleBasedStateMachine):
    """Requests join behind pages of others, grow, are computed again in new pages, and leave, some steps apart."""

    def __init__(self) -> None:
        super().__init__()
        self.free = count()
        self.tracker = PrefixGroupTracker(PAGE_SIZE)
        self.tables: list[list[int]] = []

    def _new_table(self, prefix: list[int], num_own: int) -> list[int]:
        return [*prefix, *(next(self.free) for _ in range(num_own))]

    @rule(num_own=st.integers(1, 5))
    def join(self, num_own: int) -> None:
        self.tables.append(self._new_table([], num_own))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_own=st.integers(1, 5))
    def join_behind(self, data: st.DataObject, num_own: int) -> None:
        other = data.draw(st.sampled_from(self.tables))
        prefix = other[: data.draw(st.integers(0, len(other) - 1))]
        self.tables.insert(data.draw(st.integers(0, len(self.tables))), self._new_table(prefix, num_own))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.tables)).append(next(self.free))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.tables) - 1))
        num_kept = data.draw(st.integers(0, len(self.tables[place]) - 1))
        self.tables[place] = self._new_table(self.tables[place][:num_kept], 1)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        del self.tables[data.draw(st.integers(0, len(self.tables) - 1))]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self.tables = data.draw(st.permutations(self.tables))

    @rule()
    def step(self) -> None:
        expected = _plain_groups(self.tables)
        assert _as_dict(self.tracker.groups([*self.tables])) == expected
        assert _as_dict(PrefixGroupTracker(PAGE_SIZE).groups([*self.tables])) == expected

    def teardown(self) -> None:
        self.step()


TestSteps = Steps.TestCase


def test_steps_of_the_same_requests_are_not_looked_at_again() -> None:
    tracker, tables = PrefixGroupTracker(PAGE_SIZE), [[1, 2, 3], [1, 2, 4]]
    first = tracker.groups([*tables])
    tables[0].append(5)
    assert tracker.groups([*tables]) is first
    assert tracker.groups(tables[:1]) is NO_GROUPS


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(MIN_PAGES, 5))
def test_requests_of_one_prefix_are_one_group_wherever_they_stand(prefixes: list[int], num_pages: int) -> None:
    tables = [[*range(10 * prefix, 10 * prefix + num_pages), 100 + row] for row, prefix in enumerate(prefixes)]
    expected = {
        frozenset(row for row, own in enumerate(prefixes) if own == prefix): num_pages
        for prefix in set(prefixes)
        if prefixes.count(prefix) > 1
    }
    assert _groups(tables) == expected


def test_a_prefix_shorter_than_128_tokens_is_none() -> None:
    assert _groups([[1, 2], [1, 2]]) == {frozenset({0, 1}): 2}
    assert _groups([[1], [1]]) == {}
    assert _groups([]) == {} and _groups([[1], []]) == {}


def test_equal_pages_behind_different_ones_are_not_a_prefix() -> None:
    """Two requests may have computed the same page, and found the next one."""
    assert _groups([[1, 2, 3, 4], [9, 2, 3, 5]]) == {}


def test_nested_prefixes_are_cut_where_most_would_be_lost() -> None:
    system, chats = [1, 2], ([*range(10, 20)], [*range(20, 30)])
    tables = [[*system, *chats[row % 2], 100 + row] for row in range(6)]
    assert _groups(tables) == {frozenset({0, 2, 4}): 12, frozenset({1, 3, 5}): 12}
    longer = [*range(1, 9)]
    tables = [[*longer, *tail, 100 + row] for row, tail in enumerate(([10, 11], [10, 11], [20], [30]))]
    assert _groups(tables) == {frozenset({0, 1, 2, 3}): 8}
