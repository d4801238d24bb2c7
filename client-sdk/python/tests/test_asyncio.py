"""Goal: coroutines do what the methods do, without a thread per call, and can be cancelled."""

import asyncio
import socket
import threading

import keyway
import numpy
import pytest


def test_many_at_a_time(client, prefix):
    data = numpy.arange(64 << 10, dtype=numpy.uint8)

    async def run():
        await asyncio.gather(*(client.aput(f"{prefix}{n}", data) for n in range(20)))
        before = threading.active_count()
        targets = [numpy.zeros(64 << 10, dtype=numpy.uint8) for _ in range(200)]
        results = await asyncio.gather(
            *(client.aget_into(f"{prefix}{n % 20}", target) for n, target in enumerate(targets))
        )
        assert threading.active_count() == before
        assert all((target == data).all() for target in targets)
        assert all(result.verified for result in results)
        listed = [entry.key async for entry in client.alist(prefix, page_keys=7)]
        assert len(listed) == 20
        assert (await client.aget(prefix + "3", range=(1, 2))).nbytes == 2
        assert (await client.ahead(prefix + "3")).size == 64 << 10
        parts = [(0, bytearray(10)), (50, bytearray(10))]
        assert len(await client.aget_ranges(prefix + "3", parts)) == 2
        await client.acopy(prefix + "3", prefix + "copy")
        await client.adelete(prefix + "3")
        assert not await client.aexists(prefix + "3")
        with pytest.raises(keyway.NotFound):
            await client.aget(prefix + "3")

    asyncio.run(run())


def test_a_cancelled_read_gives_its_memory_back():
    listener = socket.create_server(("127.0.0.1", 0))
    client = keyway.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", anonymous=True)
    buffer = keyway.Buffer.allocate(4096)

    async def run():
        read = asyncio.ensure_future(client.aget_into("s3://b/k", buffer))
        await asyncio.sleep(0.05)
        with pytest.raises(keyway.BufferBusy):
            await client.aget_into("s3://b/k", buffer)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        with pytest.raises(keyway.DeadlineExceeded):
            for _ in range(100):
                try:
                    await client.aget_into("s3://b/k", buffer, timeout=0.01)
                except keyway.BufferBusy:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    listener.close()


def test_loops_come_and_go(client, prefix):
    client.put(prefix + "k", b"x")
    for _ in range(3):
        assert bytes(asyncio.run(client.aget(prefix + "k"))) == b"x"

    async def give_up():
        task = asyncio.ensure_future(client.aget(prefix + "k"))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(give_up())
    assert bytes(client.get(prefix + "k")) == b"x"
