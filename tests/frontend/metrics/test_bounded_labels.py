import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from punica_frontend.metrics.bounded_labels import OTHER, WINDOW_USES, BoundedLabels


def labels(num_named: int) -> BoundedLabels[Counter[str]]:
    """Each name counts the keys that were counted under it."""
    return BoundedLabels(num_named, Counter)


def use(subject: BoundedLabels[Counter[str]], key: str, times: int = 1) -> None:
    for _ in range(times):
        subject.use(key)[key] += 1


def test_the_first_keys_get_names_and_the_rest_is_other() -> None:
    subject = labels(2)
    for key in "abcd":
        use(subject, key)
    assert list(subject.items()) == [("a", {"a": 1}), ("b", {"b": 1}), (OTHER, {"c": 1, "d": 1})]


def test_a_much_busier_key_takes_the_place_of_the_least_busy() -> None:
    subject = labels(2)
    use(subject, "a", 5)
    use(subject, "b", 2)
    use(subject, "c", 4)
    assert subject.names() == ["a", "b"]
    use(subject, "c")
    assert list(subject.items()) == [("a", {"a": 5}), ("c", {"c": 1}), (OTHER, {"c": 4})]


def test_two_keys_of_one_use_do_not_change_places_for_ever() -> None:
    subject = labels(1)
    for _ in range(100):
        use(subject, "a")
        use(subject, "b")
    assert list(subject.items()) == [("a", {"a": 100}), (OTHER, {"b": 100})]


def test_labels_that_were_busy_once_make_room() -> None:
    subject = labels(1)
    use(subject, "old", 4 * WINDOW_USES)
    use(subject, "new", 3 * WINDOW_USES)
    assert subject.names() == ["new"]


def test_a_key_that_is_called_other_is_one_of_them() -> None:
    subject = labels(2)
    use(subject, OTHER)
    assert list(subject.items()) == [(OTHER, {OTHER: 1})]


def test_without_names_all_are_others() -> None:
    subject = labels(0)
    use(subject, "a", 3)
    assert list(subject.items()) == [(OTHER, {"a": 3})]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=300), st.integers(0, 4))
def test_every_use_is_counted_once_and_nothing_ever_goes_down(keys: list[str], num_named: int) -> None:
    subject = labels(num_named)
    before: dict[str, Counter[str]] = {}
    for key in keys:
        use(subject, key)
        after = {name: Counter(counts) for name, counts in subject.items()}
        assert len(after) <= num_named + 1
        gained = Counter[str]()
        for name, counts in after.items():
            assert counts >= before.get(name, Counter())
            assert name == OTHER or counts.keys() <= {name}
            gained += counts - before.get(name, Counter())
        assert gained == {key: 1}
        before = after


def test_few_of_a_million_keys_are_counted() -> None:
    subject, rng = labels(20), random.Random(1)
    for _ in range(20_000):
        use(subject, str(rng.randrange(1_000_000)))
    assert len(subject._num_uses) <= 2 * WINDOW_USES
