"""A process that reads and checks chunks of packed files for a worker, straight into the memory of its host cache.

Its threads share no GIL with the worker's step loop. A job is one message, which names the file and the lane of its
records.
"""

import ctypes
import mmap
import os
import socket
import sys
import threading
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from punica_serve.engine.adapters.chunk_job import ChunkJob, submit
from punica_serve.engine.adapters.packed_header import PackedName
from punica_serve.engine.memory.page_mapping import map_pages
from punica_serve.learned_types import learned
from punica_serve.process.parent_death import end_with_parent

MAX_MESSAGE_BYTES = 1 << 16
#: A core sums so much from its own cache, where it has just read it to.
PIECE_BYTES = 512 << 10
_NICE = 19
_MAPPED_BYTES = 64 << 20


class ReadJob(msgspec.Struct, frozen=True, array_like=True):
    """One adapter to be read."""

    #: The number of the socket where records go.
    lane: int
    #: As the system has it: no text where a folder's name is none.
    path: bytes
    name: PackedName
    #: Where the adapter lies in the file of the host cache's memory.
    offset: int
    num_bytes: int


_decode_job = msgspec.msgpack.Decoder(learned(ReadJob)).decode


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    end_with_parent()
    mapping = mmap.mmap(options.memory, 0)
    memory, control = memoryview(mapping), socket.socket(fileno=options.control)
    lanes = [socket.socket(fileno=fd) for fd in options.lanes]
    if options.map:
        threading.Thread(target=_map, args=(mapping,), daemon=True).start()
    threads = ThreadPoolExecutor(options.threads)
    threads.submit(int).result()  # one thread at least, or this process ends before it takes a job
    with suppress(ConnectionError):  # the worker may be gone already
        control.send(b"r")
        while message := control.recv(MAX_MESSAGE_BYTES):
            job = _decode_job(message)
            part, path = memory[job.offset : job.offset + job.num_bytes], Path(os.fsdecode(job.path))
            reads = ChunkJob(path, job.name, part, lanes[job.lane], piece_bytes=PIECE_BYTES)
            submit(threads, reads.begin, threads, options.threads)
    os._exit(0)


def _map(memory: mmap.mmap) -> None:
    """Maps all pages, behind everything else: a read would map each of them at its first use."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    for _ in map_pages(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory), _MAPPED_BYTES):
        pass


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--control", required=True, type=int, help="the socket of jobs")
    parser.add_argument("--lanes", required=True, type=int, nargs="+", help="the sockets of records")
    parser.add_argument("--memory", required=True, type=int, help="the file of the host cache's memory")
    parser.add_argument("--threads", required=True, type=int)
    parser.add_argument("--map", action="store_true", help="all pages of the memory are there already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
