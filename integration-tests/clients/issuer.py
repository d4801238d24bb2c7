"""An OpenID Connect issuer on loopback, whose RSA key the openssl command draws and signs with."""

import base64
import http.server
import json
import pathlib
import subprocess
import tempfile
import threading
import time


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, given=b""):
    done = subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True)
    return done.stdout


class Issuer:
    """Publishes its key until the process ends, and signs tokens with it."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.key = str(pathlib.Path(self.folder.name) / "key.pem")
        openssl(
            "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key
        )
        modulus = openssl("rsa", "-in", self.key, "-noout", "-modulus").decode().strip()
        n = encoded(bytes.fromhex(modulus.split("=")[1]))
        # 65537, as genpkey has it.
        keys = {"keys": [{"kty": "RSA", "kid": "one", "use": "sig", "n": n, "e": "AQAB"}]}
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                described = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                answer = json.dumps(keys if self.path == "/keys" else described).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"127.0.0.1:{server.server_port}"
        self.url = f"http://{self.name}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def token(self, subject, audience="keyway", lives=300):
        now = int(time.time())
        claims = {"iss": self.url, "sub": subject, "aud": audience, "iat": now, "exp": now + lives}
        header = {"alg": "RS256", "kid": "one"}
        message = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = openssl("dgst", "-sha256", "-sign", self.key, given=message.encode())
        return f"{message}.{encoded(signature)}"
