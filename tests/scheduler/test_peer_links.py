import pytest

from punica_scheduler.peer_links import PeerLinks, frontend_peer, runner_peer
from punica_serve.errors import ProtocolError
from punica_serve.protocol import PROTOCOL_VERSION, FrontendHello, RunnerHello


class Link:
    """An end of a link; PeerLinks only tells one from another."""


def hello(instance: str) -> RunnerHello:
    return RunnerHello(PROTOCOL_VERSION, "token", "host", instance)


def test_the_newest_link_of_a_peer_counts_until_it_is_removed() -> None:
    links, first, second = PeerLinks[Link](), Link(), Link()
    assert links.put(frontend_peer("f"), first) is None and links.frontend("f") is first
    assert links.put(frontend_peer("f"), second) is first and links.frontend("f") is second
    assert links.is_newest(frontend_peer("f"), second) and not links.is_newest(frontend_peer("f"), first)
    links.remove(frontend_peer("f"))
    assert not links.is_newest(frontend_peer("f"), second)


def test_a_frontend_and_a_runner_of_one_id_are_two_peers() -> None:
    links, of_frontend, of_runner = PeerLinks[Link](), Link(), Link()
    links.put(frontend_peer("a"), of_frontend)
    links.put(runner_peer("a"), of_runner)
    assert links.frontend("a") is of_frontend and links.runner("a") is of_runner


def test_an_id_is_one_processes_until_its_last_link_is_gone() -> None:
    links, first, second = PeerLinks[Link](), Link(), Link()
    links.admit(FrontendHello(PROTOCOL_VERSION, "token", "host"))
    links.admit(hello("one"))
    links.put_runner("host", "one")
    links.put(runner_peer("host"), first)
    links.admit(hello("one"))
    with pytest.raises(ProtocolError, match="another runner has the id 'host'"):
        links.admit(hello("two"))
    links.put(runner_peer("host"), second)
    links.forget_runner("host", first)
    with pytest.raises(ProtocolError):
        links.admit(hello("two"))
    links.remove(runner_peer("host"))
    links.forget_runner("host", second)
    links.admit(hello("two"))


def test_a_gpu_is_the_links_that_joined_it_last() -> None:
    links, first, second = PeerLinks[Link](), Link(), Link()
    links.put_gpu("u1", "host/1", first)
    links.put_gpu("u0", "host/0", first)
    links.put_gpu("u2", "host/2", first)
    links.put_gpu("u1", "other/0", second)
    assert links.gpu("u1") is second and links.gpu_name("u1") == "other/0"
    assert links.owns(second, "u1") and not links.owns(first, "u1") and not links.owns(first, "unknown")
    assert (links.gpu_names(first), links.gpu_names(second)) == (["host/0", "host/2"], ["other/0"])
    links.forget_gpu("u2")
    links.forget_runner("host", first)
    assert not links.owns(first, "u0") and links.owns(second, "u1")
