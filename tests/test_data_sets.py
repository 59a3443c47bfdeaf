"""Files are read without the network; what is out of reach is found out at once."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path

import pytest

from agentgym.data_sets import OutOfReach, answers, load
from agentgym.errors import UserError


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_server_that_refuses_is_reached() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert answers(f"http://127.0.0.1:{server.server_port}", 30)
        finally:
            server.shutdown()


def test_a_closed_port_and_a_server_that_says_nothing_are_not_reached() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not answers(address, 30)  # not listening: refused, long before the limit
        silent.listen()
        assert not answers(address, 0.2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Names that were looked up; the hub's is one that nobody answers to."""
    datasets, names = pytest.importorskip("datasets"), []

    def look_up(host: object, *rest: object, **more: object) -> None:
        names.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return names


def test_a_file_is_read_without_the_network(asked: list[object], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 3}\n')
    for streaming in (True, False):
        rows = load("json", files=[str(tmp_path / "rows.jsonl")], who="test", split="train", streaming=streaming)
        assert list(rows) == [{"n": 3}]
    with pytest.raises(UserError, match=r"^test: there is no file .*gone\.jsonl$"):
        load("json", files=[str(tmp_path / "gone.jsonl")], who="test")
    assert asked == []


def test_a_hub_out_of_reach_is_asked_once(asked: list[object]) -> None:
    with pytest.raises(OutOfReach, match=r"^test: http://hub.invalid cannot be reached, .*'some/rows' is not in"):
        load("some/rows", who="test", split="train")
    assert asked == ["hub.invalid"]
