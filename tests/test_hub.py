"""A config.json fetched from a hub by name, against a stand-in server on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pages.parts.hub import fetch_config
from vram import ScenarioError
from vram.config import LARGEST, read_config

CONFIG = {"model_type": "qwen3", "hidden_size": 1024}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: 200 with the file, 401 for what is hidden or absent, 404 for a missing file."""

    asked: list = []
    ANSWERS = {
        "/Qwen/Qwen3-0.6B/resolve/main/config.json": (200, json.dumps(CONFIG).encode()),
        "/org/large/resolve/main/config.json": (200, b" " * (LARGEST + 10)),
        "/org/bare/resolve/main/config.json": (404, b"Entry not found"),
        "/org/broken/resolve/main/config.json": (500, b"oops"),
    }

    def do_GET(self):
        self.asked.append((self.path, dict(self.headers)))
        if self.path == "/old/name/resolve/main/config.json":
            self.send_response(307)
            self.send_header("Location", "/Qwen/Qwen3-0.6B/resolve/main/config.json")
            self.end_headers()
            return
        status, body = self.ANSWERS.get(self.path, (401, b"Invalid username or password."))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_the_servers_own_secret")
    Hub.asked.clear()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "old/name"])
def test_a_name_brings_its_config(hub, name):
    assert read_config(fetch_config(name)) == CONFIG


def test_no_token_of_the_server_is_ever_sent(hub):
    fetch_config("Qwen/Qwen3-0.6B")
    assert Hub.asked
    assert all("secret" not in str(headers) and "authorization" not in str(headers).lower() for _, headers in Hub.asked)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/secret", "not public"),
        ("org/bare", "no config.json"),
        ("org/broken", "500"),
        ("org/large", "too large"),
    ],
)
def test_a_refusal_is_one_plain_sentence(hub, name, said):
    with pytest.raises(ScenarioError, match=said):
        fetch_config(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "llama", "../../etc/passwd", "a/b/c", "org/../x", "org/na me", "http://127.0.0.1/x", "org/<script>"),
        *("-org/name", "org/" + "x" * 200, "org/name?x=1", "org/name#x", "örg/name"),
    ],
)
def test_what_is_no_name_is_never_asked_for(hub, name):
    with pytest.raises(ScenarioError, match="organisation/model"):
        fetch_config(name)
    assert not Hub.asked


def test_without_a_hub_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ScenarioError, match="paste or upload"):
        fetch_config("Qwen/Qwen3-0.6B")
