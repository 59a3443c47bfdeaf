"""Frames and lines between the host, the agent and its children."""

from __future__ import annotations

import os
import threading

import pytest

from agentgym_sandboxes.agent import frames


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x00\x00\x00\x02\x00\x00\x00\x00{]"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(data)


def test_write_all_writes_more_than_a_pipe_holds() -> None:
    read, write = os.pipe()
    data = os.urandom(1 << 20)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(frames.read_all(read)))
    reader.start()
    frames.write_all(write, data)
    os.close(write)
    reader.join()
    os.close(read)
    assert received == [data]


def test_lines_end_with_the_stream_and_have_a_limit() -> None:
    read, write = os.pipe()
    frames.write_line(write, ["r", 1])
    frames.write_all(write, b"x" * 2000)
    os.close(write)
    lines = frames.LineReader(read, max_bytes=1000)
    assert lines.next() == ["r", 1]
    with pytest.raises(frames.FrameError, match="more than 1000 bytes"):
        lines.next()
    os.close(read)
