"""A real server for all tests: `keyway serve` from `KEYWAY_BINARY`, on data of its own."""

import os
import secrets
import shutil
import subprocess
import tempfile

import keyway
import pytest


class Server:
    """A `keyway serve` process."""

    def __init__(self, extra=()):
        binary = os.environ.get("KEYWAY_BINARY")
        if not binary:
            pytest.skip("KEYWAY_BINARY names no server", allow_module_level=True)
        self.keys = {
            "access_key": "TEST" + secrets.token_hex(6),
            "secret_key": secrets.token_hex(20),
        }
        self.scratch = tempfile.mkdtemp(
            prefix="keyway-python-", dir=os.environ.get("KEYWAY_TEST_DIR")
        )
        config = os.path.join(self.scratch, "keyway.toml")
        with open(config, "w") as file:
            file.write('listen.admin_address = "127.0.0.1:0"\n')
            file.writelines(f"{line}\n" for line in extra)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("KEYWAY_", "AWS_"))}
        environment["KEYWAY_ROOT_ACCESS_KEY"] = self.keys["access_key"]
        environment["KEYWAY_ROOT_SECRET_KEY"] = self.keys["secret_key"]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [binary, "serve", "--config", config, "--listen", "127.0.0.1:0",
             "--data-dir", os.path.join(self.scratch, "data")],
            stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True,
        )  # fmt: skip
        for line in self.process.stdout:
            if line.startswith("keyway ready: "):
                self.url = line.split()[2].rstrip("/")
                return
        self.log.seek(0)
        raise RuntimeError(f"the server ended before it was ready:\n{self.log.read()}")

    def client(self, **options):
        return keyway.Client(self.url, **{**self.keys, **options})

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def server():
    server = Server(os.environ.get("KEYWAY_TEST_CONFIG", "").split(";"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def client(server):
    client = server.client()
    client.create_bucket("python")
    return client


@pytest.fixture
def prefix(request):
    """An address of a test's own."""
    return f"s3://python/{request.node.name}/"
