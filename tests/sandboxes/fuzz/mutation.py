"""Ways to spoil bytes and JSON texts: some at random, most keeping the form of what they spoil."""

from __future__ import annotations

import json
import re
from random import Random

_DEEP = "\x01deep"  # stands for a list of lists: Python's own writer has a limit
_DEEP_TEXT = re.compile(rb'"\\u0001deep([0-9]+)"')
INTERESTING = [
    b"", b"\x00", b"\xff" * 4, b"\r\n", b"\n", b"[", b"]" * 9, b'"', b"{}", b"-1", b"1e999", b"NaN",
    b"\xed\xa0\x80",
]  # fmt: skip
INTERESTING_NUMBERS = [
    0, -1, 1, 127, 255, 256, 65535, 65536, (1 << 27) + 1, (1 << 31) - 1, (1 << 32) - 1, -(1 << 63),
    1 << 64,
]  # fmt: skip


def spoil(random: Random, data: bytes, times: int | None = None) -> bytes:
    """A few random changes."""
    for _ in range(random.randint(1, 6) if times is None else times):
        data = random.choice(_CHANGES)(random, data)
    return data


def pieces(random: Random, data: bytes) -> list[bytes]:
    """The bytes, cut at random places."""
    if not data or random.random() < 0.2:
        return [data]
    size = random.choice((1, 7, 100, len(data)))
    cut = []
    while data:
        length = random.randint(1, max(1, size))
        cut.append(data[:length])
        data = data[length:]
        if len(cut) > 300:
            size = len(data) or 1
    return cut


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :]


def _insert(random: Random, data: bytes) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + random.choice([*INTERESTING, random.randbytes(random.randint(1, 12))]) + data[place:]


def _delete(random: Random, data: bytes) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + data[place + random.randint(1, 16) :]


def _repeat(random: Random, data: bytes) -> bytes:
    start = random.randint(0, len(data))
    end = min(len(data), start + random.randint(1, 200))
    return data[:end] + data[start:end] * random.randint(1, 3) + data[end:]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _number(random: Random, data: bytes) -> bytes:
    """Overwrite four bytes with a length that is likely to hurt."""
    if len(data) < 4:
        return data
    place = random.choice((0, 4, random.randint(0, len(data) - 4)))
    number = (random.choice(INTERESTING_NUMBERS) & 0xFFFFFFFF).to_bytes(4)
    return data[:place] + number + data[place + 4 :]


_CHANGES = (_flip, _insert, _delete, _repeat, _truncate, _number)


def random_tree(random: Random, depth: int = 0) -> object:
    """A JSON value, now and then a very deep, long or large one."""
    roll = random.random()
    if depth > 4 or roll < 0.5:
        return random_leaf(random)
    if roll < 0.9:
        return [random_tree(random, depth + 1) for _ in range(random.randint(0, 4))]
    if roll < 0.97:
        return {str(random_leaf(random)): random_tree(random, depth + 1) for _ in range(random.randint(0, 3))}
    return _DEEP + random.choice(("60", "500", "100000")) if roll < 0.985 else ["l", *[0] * random.randint(1000, 20000)]


def random_leaf(random: Random) -> object:
    tags = ["l", "t", "s", "z", "d", "i", "b", "c", "u", "a", "r", "n", "x", "ok", "pass", "&", "deque", "default",
            "counter", "ordered", "range", "slice", "decimal", "fraction", "date", "datetime", "time", "timedelta",
            "timezone", "type"]  # fmt: skip
    return random.choice([
        None, True, False, 0, 1, -1, 1 << 62, 1 << 70, -(1 << 63), 0.0, -0.0, 1e308, float("inf"), float("nan"),
        "", "x" * random.choice((1, 100, 5000)), "\ud800", "\x00", "é", "0x1", "ff", "AAAA", "int",
        "Exception", "1e999999", random.choice(tags), random.choice(tags), random.choice(tags), random.randint(-5, 300),
    ])  # fmt: skip


def spoil_tree(random: Random, tree: object) -> object:
    """Change one place of a JSON value."""
    if isinstance(tree, list) and tree and random.random() < 0.8:
        place = random.randrange(len(tree))
        roll = random.random()
        if roll < 0.7:
            return [*tree[:place], spoil_tree(random, tree[place]), *tree[place + 1 :]]
        if roll < 0.8:
            return [*tree[:place], *tree[place + 1 :]]
        if roll < 0.9:
            return [*tree[:place], tree[place], *tree[place:]]
        return [*tree[:place], random_tree(random, 3), *tree[place:]]
    return random_tree(random, 2)


def as_text(tree: object) -> bytes:
    """The JSON text; lone surrogates are escaped, and deep lists, which no writer of ours can make, are deep."""
    return _DEEP_TEXT.sub(lambda m: b'["l",' * int(m[1]) + b"[]" + b"]" * int(m[1]), json.dumps(tree).encode())
