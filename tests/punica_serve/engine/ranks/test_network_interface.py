"""The interface towards another host."""

import socket

from punica_serve.engine.ranks.network_interface import LOOPBACK, interface_to


def test_this_host_is_reached_by_its_own_interface() -> None:
    assert interface_to("127.0.0.1") == LOOPBACK
    assert interface_to("127.0.1.1") == LOOPBACK
    assert interface_to("localhost") == LOOPBACK


def test_others_are_reached_by_one_that_this_host_has() -> None:
    """None where there is no way out of this machine."""
    found = interface_to("192.0.2.1")
    assert found is None or found in {name for _, name in socket.if_nameindex()} - {LOOPBACK}


def test_a_name_without_an_address_has_none() -> None:
    assert interface_to("no-such-host.invalid") is None
