from hypothesis import given
from hypothesis import strategies as st

from punica_serve.text.stop_strings import StopStrings


def feed_all(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stream, given_out = StopStrings(stops), ""
    for piece in pieces:
        emitted, stopped = stream.feed(piece)
        given_out += emitted
        if stopped:
            return given_out, True
    return given_out + stream.flush(), False


def test_without_stops_everything_passes_at_once() -> None:
    assert StopStrings([]).feed("abc") == ("abc", False)


def test_text_is_cut_before_the_stop_string() -> None:
    assert StopStrings(["\n"]).feed("one\ntwo") == ("one", True)


def test_a_stop_string_may_span_pieces() -> None:
    stream = StopStrings(["END"])
    assert stream.feed("the E") == ("the ", False)
    assert stream.feed("N") == ("", False)
    assert stream.feed("D of it") == ("", True)


def test_only_what_may_still_become_a_stop_string_is_held_back() -> None:
    stream = StopStrings(["aab"])
    assert stream.feed("xaa") == ("x", False)
    assert stream.feed("a") == ("a", False)
    assert stream.flush() == "aa"
    assert stream.flush() == ""


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert feed_all(["abcd", "bc"], ["abcd"]) == ("a", True)
    assert feed_all(["abcd", "bc"], ["abc", "d"]) == ("a", True)


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert feed_all(["c", "abc"], ["xabc"]) == ("x", True)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_the_cut_into_pieces_does_not_matter(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    given_out, stopped = feed_all(stops, pieces)
    assert (given_out, stopped) == feed_all(stops, list(text))
    assert text.startswith(given_out)
    assert stopped == any(stop in text for stop in stops)
    assert not any(stop in given_out for stop in stops)
