"""Goal: a client works in forked children and in workers of data loaders, and the parent's
goes on working beside them."""

import asyncio
import multiprocessing
import os
import signal
import traceback

import pytest


def in_child(work):
    """Runs in a forked child; its exception is ours."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_children_of_a_used_client(client, prefix):
    client.put(prefix + "k", bytes(range(256)) * 4096)
    asyncio.run(client.aget(prefix + "k"))

    def work():
        target = bytearray(1 << 20)
        for _ in range(3):
            assert client.get_into(prefix + "k", target).verified
            assert target == bytes(range(256)) * 4096
        assert asyncio.run(client.aget(prefix + "k")).nbytes == 1 << 20
        client.put(f"{prefix}of-{os.getpid()}", target)
        grandchild = in_child(lambda: client.get_into(prefix + "k", target))
        assert ended_well(grandchild)

    children = [in_child(work) for _ in range(3)]
    for _ in range(5):
        assert client.get(prefix + "k").nbytes == 1 << 20
    assert all([ended_well(child) for child in children])
    assert len(list(client.list(prefix))) == 4


def sample(arguments):
    client, url, index = arguments
    target = bytearray(16)
    client.get_into(url, target, range=(index * 16, 16))
    return bytes(target)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader(client, prefix, method):
    data = os.urandom(64 * 16)
    client.put(prefix + "k", data)
    with multiprocessing.get_context(method).Pool(2) as pool:
        work = [(client, prefix + "k", index) for index in range(64)]
        assert b"".join(pool.map(sample, work, chunksize=8)) == data
