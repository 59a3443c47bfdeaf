"""The frame protocol: what a reader makes of any bytes, and what the host makes of any agent."""

from __future__ import annotations

import json
import struct
from random import Random

from agentgym_sandboxes.agent import frames
from agentgym_sandboxes.docker.container import AgentStream
from fuzz import mutation
from fuzz.running import Target


def random_frames(random: Random) -> list[frames.Frame]:
    """A few frames as either side sends them."""
    found = []
    for number in range(random.randint(1, 5)):
        header: frames.Header = {"id": number, "op": random.choice(("ping", "grade", "proxy.data"))}
        if random.random() < 0.5:
            header["limits"] = {"wall_s": 1.0, "cpu_s": 2.5}
        if random.random() < 0.3:
            leaf = json.loads(mutation.as_text(str(mutation.random_leaf(random))))
            header["names"] = ["é" * random.randint(0, 40), "\ud800", leaf]
        blobs = [random.randbytes(random.choice((0, 1, 10, 5000))) for _ in range(random.randint(0, 3))]
        found.append(frames.Frame(header, blobs))
    return found


def stream_of(messages: list[frames.Frame]) -> bytes:
    return b"".join(frames.encode(message.header, message.blobs) for message in messages)


def round_trip(random: Random) -> None:
    """Frames come back, however their stream is cut."""
    messages = random_frames(random)
    reader, found = frames.FrameReader(), []
    for piece in mutation.pieces(random, stream_of(messages)):
        found += reader.feed(piece)
    assert [(f.header, [bytes(b) for b in f.blobs]) for f in found] == [(m.header, m.blobs) for m in messages]


def hostile_stream(random: Random) -> bytes:
    """What no sender of ours would send: spoiled frames, headers of another form, or noise."""
    roll = random.random()
    if roll < 0.5:
        return mutation.spoil(random, stream_of(random_frames(random)))
    if roll < 0.9:
        out = b""
        for _ in range(random.randint(1, 4)):
            body = random.randbytes(random.choice((0, 3, 100)))
            header = mutation.random_tree(random)
            if random.random() < 0.6:
                n = len(body)
                sizes = random.choice(([n], [n], [], mutation.random_tree(random), [-1, n + 1], [True] * n, [1e300]))
                header = {"id": mutation.random_leaf(random), "sizes": sizes, "event": mutation.random_leaf(random)}
            head = mutation.as_text(header)[: 1 << 16]
            out += struct.pack(">II", len(head), len(body)) + head + body
        return out
    return random.randbytes(random.randint(0, 3000))


def hostile_frames(random: Random) -> None:
    """A reader raises FrameError or waits for more; what it takes for a frame has a header and whole blobs."""
    stream = hostile_stream(random)
    reader = frames.FrameReader()
    try:
        for piece in mutation.pieces(random, stream):
            for frame in reader.feed(piece):
                assert isinstance(frame.header, dict)
                assert all(isinstance(blob, (bytes, bytearray)) for blob in frame.blobs)
                assert sum(map(len, frame.blobs)) <= len(stream)
    except frames.FrameError:
        pass


def engine_stream(random: Random) -> None:
    """Frames within the engine's own framing: the right ones come through, standard error stays apart."""
    messages = random_frames(random)
    stream, said, wrapped = stream_of(messages), b"", b""
    for piece in mutation.pieces(random, stream):
        wrapped += struct.pack(">BxxxI", 1, len(piece)) + piece
        if random.random() < 0.2:
            text = random.randbytes(random.randint(0, 30))
            wrapped += struct.pack(">BxxxI", 2, len(text)) + text
            said += text
    found: list[frames.Frame] = []
    lost: list[str] = []
    agent = AgentStream(found.append, lost.append)
    for piece in mutation.pieces(random, wrapped):
        agent.data_received(piece)
    assert [f.header for f in found] == [m.header for m in messages]
    assert (lost, agent.stderr) == ([], said[-4000:])


def hostile_engine_stream(random: Random) -> None:
    """Any bytes in place of the engine's: frames, or a reason why the container is lost; never an exception."""
    stream = hostile_stream(random)
    if random.random() < 0.7:
        stream = struct.pack(">BxxxI", random.choice((0, 1, 1, 2, 3, 255)), len(stream)) + stream
    if random.random() < 0.5:
        stream = mutation.spoil(random, stream)
    found: list[frames.Frame] = []
    lost: list[str] = []
    agent = AgentStream(found.append, lost.append)
    for piece in mutation.pieces(random, stream):
        agent.data_received(piece)
    agent.connection_lost(None)
    assert lost and all(len(why) < 9000 for why in lost)
    assert all(isinstance(frame.header, dict) for frame in found)


TARGETS = [
    Target(name="frames-round-trip", case=round_trip),
    Target(name="frames-hostile", case=hostile_frames),
    Target(name="engine-stream", case=engine_stream),
    Target(name="engine-stream-hostile", case=hostile_engine_stream),
]
