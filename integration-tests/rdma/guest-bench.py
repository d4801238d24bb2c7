#!/usr/bin/env python3
"""In the guest, called by bench.sh: guest-bench.py STAGED SECONDS

Machines drift, emulated ones that share their host above all. So the link is measured before each
round of ours and after it, rows that are compared take turns, and a row is told by its medians.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MB_PER_MIB = (1 << 20) / 1e6
ACCESS_KEY, SECRET_KEY = "benchmark", "benchmark-secret-key"
CONFIG = """\
[node.store]
engine = "memory"
capacity_bytes = 1073741824
buffer_bytes = 67108864
[node.tier]
size_bytes = {tier_bytes}
[node.rdma]
mode = "require"
devices = ["rxe0"]
[s3]
default_etag_policy = "crc64nvme"
"""


def link():
    """What perftest moves in 4 s, in MB/s."""
    run = ["bandwidth", "write", str(1 << 20), "4"]
    return float(subprocess.run(run, check=True, stdout=subprocess.PIPE).stdout)


def keep_in_place(process, places):
    """Keeps threads on the processors that serve their interfaces (setup.sh), as operators do.

    A thread that sends from the processor that receives has both wait for each other, and which
    one it is on would be what a benchmark of short transfers measures.
    """
    left = dict(places)
    while left and process.poll() is None:
        for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
            processor = left.pop((task / "comm").read_text().strip(), None)
            if processor is not None:
                os.sched_setaffinity(int(task.name), {processor})
        time.sleep(0.01)


@contextlib.contextmanager
def serving(name, port, tier_bytes):
    """A server with room for `tier_bytes` in its memory tier, while the block runs."""
    folder = pathlib.Path("/tmp") / name
    folder.mkdir()
    (folder / "keyway.toml").write_text(CONFIG.format(tier_bytes=tier_bytes))
    command = [keyway, "serve", "--config", folder / "keyway.toml", "--data-dir", folder / "data"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, stderr=log
        )
    try:
        if not server.stdout.readline():
            sys.exit((folder / "log").read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def cell(endpoint, options):
    """One cell of `keyway bench`; where a transfer failed, which the server's log tells, again."""
    command = (
        f"{keyway} bench --endpoint {endpoint} --path verbs-host --require-strength window "
        f"--seconds {seconds} --warm-up-seconds 2 --json --threads 2 {options}"
    )
    ran = subprocess.run(command.split(), check=False, stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        print(f"measured again: {options}")
        for log in pathlib.Path("/tmp").glob("*/log"):
            print("".join(f"  {line}\n" for line in log.read_text().splitlines()[-20:]), end="")
        ran = subprocess.run(command.split(), check=True, stdout=subprocess.PIPE, text=True)
    lines = ran.stdout
    [told] = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return told


def bench(endpoint, rounds, rows):
    """Measures the rows in turns, tells each beside the link, and returns their MB/s."""
    seen = {what: [] for what in rows}
    before = link()
    for _ in range(rounds):
        for what, options in rows.items():
            told = cell(endpoint, options)
            after = link()
            told["link"], before = (before + after) / 2, after
            seen[what].append(told)
    speeds = []
    for what, cells in seen.items():
        moved = [told["mib_per_second"] * MB_PER_MIB for told in cells]
        shares = [speed / told["link"] for speed, told in zip(moved, cells, strict=True)]
        print(
            f"{what}: {statistics.median(moved):.1f} MB/s, "
            f"{statistics.median(shares):.0%} of ib_write_bw; each round:",
            ", ".join(f"{share:.0%}" for share in shares),
        )
        phases = [told["transfer_phases_us"] or {} for told in cells]
        print(
            "  a request, ms:",
            ", ".join(
                f"{part} {statistics.median(told[part] for told in phases) / 1e3:.1f}"
                for part in phases[0]
            ),
        )
        processes = [told["process_mib_per_second"] for told in cells]
        if len(processes[0]) > 1:
            parts = [share / statistics.mean(each) for each in processes for share in each]
            print(f"  fairness: {min(parts):.0%} to {max(parts):.0%} of the mean share")
        speeds.append(statistics.median(moved))
        sys.stdout.flush()
    return speeds


staged, seconds = pathlib.Path(sys.argv[1]), sys.argv[2]
keyway = staged / "keyway"
os.chdir("/tmp")
os.environ |= {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "KEYWAY_ROOT_ACCESS_KEY": ACCESS_KEY,
    "KEYWAY_ROOT_SECRET_KEY": SECRET_KEY,
    "KEYWAY_RDMA_DEVICES": "rxe1",
}

print("== perftest, ib_write_bw, messages of 1 MiB")
print(f"{link()} MB/s")
print("== the key's cost", flush=True)
links = subprocess.Popen([staged / "links", "--bench"])
keep_in_place(links, {"kw-rxe0/1": 0, "kw-rxe1/1": 1})
if links.wait() != 0:
    sys.exit("the benchmark of links failed")

# All in the server's memory tier, where no processor touches the bytes of a GET.
with serving("tier", 9000, 640 << 20) as tier:
    print("== objects of 64 MiB out of the memory tier")
    get = "--operations get --sizes 64MiB"
    one_get = f"{get} --concurrency 1"
    bench(
        tier,
        5,
        {"GET, one at a time, in parts of 32 MiB as by itself": f"{one_get} --part-size 32MiB"},
    )
    bench(
        tier,
        3,
        {
            "GET, one at a time, one request": one_get,
            "GET, four at a time": f"{get} --concurrency 4",
        },
    )
    print("== objects of 4 MiB out of the tier, one client process, and eight that begin at once")
    get = "--operations get --sizes 4MiB --concurrency 1"
    one, eight = bench(tier, 5, {"one process": get, "eight processes": f"{get} --processes 8"})
    print(f"  together {eight / one:.0%} of one process's")
# In the memory store, from which they are copied and summed as from a drive.
with serving("store", 9001, 0) as store:
    print("== objects of 64 MiB in the memory store")
    bench(
        store,
        3,
        {
            "GET, one at a time, one request": "--operations get --sizes 64MiB --concurrency 1",
            "GET, four at a time": "--operations get --sizes 64MiB --concurrency 4",
            "PUT, one at a time": "--operations put --sizes 64MiB --concurrency 1",
        },
    )
