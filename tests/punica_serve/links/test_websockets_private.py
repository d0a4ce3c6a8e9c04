"""A test for each private part of websockets that links use: the one that fails names what a release has changed."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from websockets.asyncio.connection import Connection
from websockets.client import ClientProtocol
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.streams import StreamReader
from websockets.uri import parse_uri

import punica_serve
from punica_serve.links import websockets_private

PACKAGE = Path(punica_serve.__file__).parent
PRIVATE = r"\.process_event|\.send_data\b|\.reader\.buffer|websockets\.(speedups|utils|streams)|connection_lost_waiter"


def changed(part: str) -> str:
    return f"websockets {version('websockets')} has changed {part}; see {websockets_private.__name__}"


@pytest.mark.parametrize("name", ["process_event", "send_data"])
def test_a_connection_has_the_methods_that_links_override_or_call(name: str) -> None:
    assert callable(getattr(Connection, name, None)), changed(f"Connection.{name}")


async def test_a_connection_keeps_its_protocol() -> None:
    protocol = Protocol(Side.CLIENT)
    assert getattr(Connection(protocol), "protocol", None) is protocol, changed("Connection.protocol")


def test_a_protocol_has_a_reader_with_a_buffer() -> None:
    protocol = ClientProtocol(parse_uri("ws://localhost"), state=State.OPEN)
    reader = getattr(protocol, "reader", None)
    assert isinstance(reader, StreamReader), changed("Protocol.reader")
    frame = Frame(Opcode.BINARY, b"payload").serialize(mask=False)
    protocol.receive_data(frame[:-1])
    assert reader.buffer, changed("StreamReader.buffer: it must hold the beginning of a frame")
    protocol.receive_data(frame[-1:])
    assert not reader.buffer, changed("StreamReader.buffer: it must be empty between two frames")
    (event,) = protocol.events_received()
    assert isinstance(event, Frame) and event.opcode in DATA_OPCODES, changed("Protocol.events_received")


def test_the_mask_is_applied_in_compiled_code() -> None:
    assert websockets_private.apply_mask(b"abcde", b"\x01\x02\x03\x04") == b"````d", changed("apply_mask")
    speedups = pytest.importorskip("websockets.speedups", reason="no wheel for this machine")
    assert websockets_private.apply_mask is getattr(speedups, "apply_mask", None), changed("speedups.apply_mask")


def test_no_other_module_uses_private_parts() -> None:
    """Others would break with a new release without a test that names them."""
    users = [path for path in PACKAGE.rglob("*.py") if re.search(PRIVATE, path.read_text())]
    assert users == [Path(websockets_private.__file__)]


def test_the_tested_version_is_within_the_bounds_of_pyproject() -> None:
    text = (PACKAGE.parents[1] / "pyproject.toml").read_text()
    (bounds,) = re.findall(r'"(websockets[^"]*)"', text.split("[project.optional-dependencies]")[0])
    requirement = Requirement(bounds)
    assert any(bound.operator == "<" for bound in requirement.specifier), "private parts need an upper bound"
    assert requirement.specifier.contains(version("websockets"))
