import pytest
from starlette.requests import HTTPConnection

from punica_frontend.tenancy.origin import check_cookie_origin, check_local_host, check_origin
from punica_serve.errors import Forbidden


def connection(kind: str = "http", method: str = "POST", **headers: str) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": kind, "method": method, "path": "/", "headers": raw})


@pytest.mark.parametrize("origin", ["http://a.example:8000", "https://a.example:8000", "HTTP://A.EXAMPLE:8000"])
def test_a_page_of_this_frontend(origin: str) -> None:
    check_origin(connection(host="a.example:8000", origin=origin))
    check_cookie_origin(connection(host="a.example:8000", origin=origin))
    check_cookie_origin(connection("websocket", host="a.example:8000", origin=origin))


@pytest.mark.parametrize(
    "origin", ["http://b.example:8000", "http://a.example", "http://a.example:8000.b.example", "null", "", "http://[x"]
)
def test_a_page_of_another_site(origin: str) -> None:
    for kind in ("http", "websocket"):
        with pytest.raises(Forbidden, match=r"may not use 'a\.example:8000'"):
            check_origin(connection(kind, host="a.example:8000", origin=origin))
        with pytest.raises(Forbidden):
            check_cookie_origin(connection(kind, host="a.example:8000", origin=origin))


def test_a_page_without_a_host_is_no_match() -> None:
    with pytest.raises(Forbidden):
        check_origin(connection(origin="null"))


def test_clients_other_than_browsers_have_no_origin_and_no_cookie() -> None:
    check_origin(connection(host="a.example"))
    for kind in ("http", "websocket"):
        with pytest.raises(Forbidden, match="Authorization: Bearer"):
            check_cookie_origin(connection(kind, host="a.example"))


def test_a_page_may_link_to_what_changes_nothing() -> None:
    check_cookie_origin(connection(method="GET", host="a.example", origin="http://b.example"))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "x.localhost"]
)
def test_names_of_this_machine(host: str) -> None:
    check_local_host(connection(host=host))


@pytest.mark.parametrize("host", ["b.example", "b.example:8000", "localhost.b.example", "10.0.0.1", "", "[x", "[::2]"])
def test_a_name_that_was_bound_anew_to_this_machine(host: str) -> None:
    with pytest.raises(Forbidden, match="keys create"):
        check_local_host(connection(host=host))
