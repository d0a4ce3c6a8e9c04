import asyncio

import pytest

from punica_serve.errors import ConfigError
from punica_serve.links.addresses import dialled, listening_ports, scheduler_url, until_listening
from waits import DEADLINE_S


def test_zero_gives_free_ports() -> None:
    ports = listening_ports("127.0.0.1", 0, 3, "--port")
    assert len(set(ports)) == 3
    assert listening_ports("127.0.0.1", ports[0], 1, "--port") == ports[:1]


def test_ports_are_consecutive(taken_port: int) -> None:
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{taken_port}: the port is in use"):
        listening_ports("127.0.0.1", taken_port - 1, 2, "--port")


def test_a_port_in_use_is_refused_by_name(taken_port: int) -> None:
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{taken_port}: the port is in use.* `--port`$") as caught:
        listening_ports("127.0.0.1", taken_port, 1, "--port")
    assert caught.value.param == "port"


def test_a_port_past_the_last_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"can't listen on 127.0.0.1:65536: the highest port is 65535; change `--port`$"
    ):
        listening_ports("127.0.0.1", 65536, 1, "--port")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("192.0.2.1", "can't listen on 192.0.2.1:0: Cannot assign requested address; change `--host`"),
        ("\udcff", "can't listen on \udcff:0: it is not a host's name or address; change `--host`"),
        ("a..b", "can't listen on a..b:0: it is not a host's name or address; change `--host`"),
        ("no.such.host.invalid", "can't listen on no.such.host.invalid:0: Name or service not known; change `--host`"),
    ],
)
def test_an_address_that_is_not_ours_is_refused(host: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listening_ports(host, 0, 1, "--port")
    assert caught.value.message == told


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
    assert scheduler_url("0.0.0.0", 8100, is_tls=False) == "ws://127.0.0.1:8100"
    assert scheduler_url("10.0.0.1", 8100, is_tls=True) == "wss://10.0.0.1:8100"


def test_port_0_can_be_listened_on_but_not_dialled() -> None:
    with pytest.raises(ConfigError, match=r"`scheduler.port` is 0.* give `--scheduler-url`"):
        scheduler_url("127.0.0.1", 0, is_tls=False)


async def test_it_waits_until_a_server_listens() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(DEADLINE_S):
        await until_listening(*server.sockets[0].getsockname())
