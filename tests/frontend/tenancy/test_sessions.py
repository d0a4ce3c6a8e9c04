import pytest

from punica_frontend.tenancy.sessions import LIFETIME_S, Sessions


def test_every_frontend_of_the_cluster_takes_the_cookie() -> None:
    cookie = Sessions("token").cookie("k1", now_s=1000.5)
    assert Sessions("token").key_id_of(cookie, now_s=1001.0) == "k1"
    assert "token" not in cookie


def test_a_cookie_expires() -> None:
    sessions = Sessions("token")
    cookie = sessions.cookie("k1", now_s=1000.0)
    assert sessions.key_id_of(cookie, now_s=1000.0 + LIFETIME_S - 1) == "k1"
    assert sessions.key_id_of(cookie, now_s=1000.0 + LIFETIME_S) is None


@pytest.mark.parametrize("forged", ["", ".", "..", "k1", "k1.9999999999.", "k1.9999999999.é", "\udce9.1.x", "a.b.c.d"])
def test_nothing_else_is_a_cookie(forged: str) -> None:
    assert Sessions("token").key_id_of(forged, now_s=1000.0) is None


def test_no_part_of_a_cookie_can_be_changed() -> None:
    sessions = Sessions("token")
    key_id, expires, signature = sessions.cookie("k1", now_s=1000.0).split(".")
    assert sessions.key_id_of(f"{key_id}.{int(expires) + 1}.{signature}", now_s=1000.0) is None
    assert sessions.key_id_of(f"k2.{expires}.{signature}", now_s=1000.0) is None
    assert sessions.key_id_of(Sessions("another").cookie("k1", now_s=1000.0), now_s=1000.0) is None
