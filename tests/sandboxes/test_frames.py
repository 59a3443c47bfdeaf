"""Frames and lines between the host, the agent and its children."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym_sandboxes.agent import frames


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x00\x00\x00\x02\x00\x00\x00\x00{]"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(data)


def test_write_all_writes_more_than_a_pipe_holds() -> None:
    read, write = os.pipe()
    data = os.urandom(1 << 20)
    with ThreadPoolExecutor() as threads, os.fdopen(read, "rb") as file:
        received = threads.submit(file.read)
        frames.write_all(write, data)
        os.close(write)
        assert received.result() == data
