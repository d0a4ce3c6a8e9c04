import pytest

from punica_serve.cli.addresses import dialled, listening_port, scheduler_url
from punica_serve.errors import ConfigError


def test_zero_gives_a_free_port() -> None:
    port = listening_port("127.0.0.1", 0, "--port")
    assert listening_port("127.0.0.1", port, "--port") == port


def test_a_port_in_use_is_refused_by_name(taken_port: int) -> None:
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{taken_port}: the port is in use.* --port$"):
        listening_port("127.0.0.1", taken_port, "--port")


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on 192.0.2.1:0: .*--host"):
        listening_port("192.0.2.1", 0, "--host")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("gpu-7", "gpu-7:80"),
        ("0.0.0.0", "127.0.0.1:80"),
        ("::", "[::1]:80"),
        ("fe80::1", "[fe80::1]:80"),
    ],
)
def test_an_address_as_a_peer_dials_it(host: str, expected: str) -> None:
    assert dialled(host, 80) == expected


def test_the_schedulers_url() -> None:
    assert scheduler_url("0.0.0.0", 8100) == "ws://127.0.0.1:8100"


def test_port_0_can_be_listened_on_but_not_dialled() -> None:
    with pytest.raises(ConfigError, match=r"`scheduler.port` is 0.* give --scheduler-url"):
        scheduler_url("127.0.0.1", 0)
