import asyncio

from punica_serve.cli.up import local


async def test_it_waits_until_the_scheduler_listens() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        await local._until_listening(*server.sockets[0].getsockname())
