"""Compares trees of the value codec, and shows them as Python would.

They come from untrusted code, so nothing here hashes them or follows them deeper than the expected value goes.
"""

from __future__ import annotations

import contextlib
import math

from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.values import Tree
from agentgym_sandboxes.host.wording import cut

MAX_VALUE_CHARS = 80
_BRACKETS = {
    "l": ("[", "]"),
    "t": ("(", ")"),
    "s": ("{", "}"),
    "z": ("frozenset({", "})"),
    "d": ("{", "}"),
    "counter": ("Counter({", "})"),
    "ordered": ("OrderedDict({", "})"),
    "default": ("defaultdict(None, {", "})"),
    "deque": ("deque([", "])"),
}
_MAPPINGS = ("d", "counter", "default")  # an OrderedDict is compared in its order
_LONG = 1000  # characters of a number that are not worth reading


def same(got: Tree, expected: Tree, tolerance: float = 0.0) -> bool:
    """Whether two trees are equal values of equal types. nan equals nan; sets are compared exactly."""
    if type(got) is not type(expected):
        return False
    if isinstance(expected, float):
        assert isinstance(got, float)
        if got == expected or (math.isnan(got) and math.isnan(expected)):
            return True
        return tolerance > 0 and math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    if not isinstance(expected, list):
        return got == expected
    assert isinstance(got, list)
    if not got or got[0] != expected[0]:
        return False
    tag, got, expected = expected[0], _compared(got), _compared(expected)
    if tag in ("range", "decimal"):
        return _same_built(str(tag), got, expected)
    if tag == "counter":
        got, expected = _counted(got), _counted(expected)
    if len(got) != len(expected):
        return False
    if tag in ("s", "z"):
        return sorted(_texts(got)) == sorted(_texts(expected))
    if tag in _MAPPINGS:
        given = dict(zip(_texts(got[::2]), got[1::2], strict=True))
        wanted = dict(zip(_texts(expected[::2]), expected[1::2], strict=True))
        return given.keys() == wanted.keys() and all(same(given[k], wanted[k], tolerance) for k in wanted)
    return all(same(a, b, tolerance) for a, b in zip(got, expected, strict=True))


def _compared(tree: list[Tree]) -> list[Tree]:
    """What counts: neither a defaultdict's factory nor the room of a deque does."""
    return tree[2:] if tree[0] in ("default", "deque") else tree[1:]


def _counted(pairs: list[Tree]) -> list[Tree]:
    """A Counter's pairs but those that count nothing, which it need not have."""
    zipped = zip(pairs[::2], pairs[1::2], strict=True)
    return [part for pair in zipped if type(pair[1]) is not int or pair[1] for part in pair]


def _same_built(tag: str, got: list[Tree], expected: list[Tree]) -> bool:
    """Values that are equal although they are written in other ways, as Decimal('1.0') and Decimal('1.00')."""
    if not (_is_short(got) and _is_short(expected)):
        return got == expected
    one, other = values.decode([tag, *got]), values.decode([tag, *expected])
    # By their texts first: a decimal that is not a number is unequal to itself, or must not be asked.
    return repr(one) == repr(other) or one == other


def render(tree: Tree, max_chars: int = MAX_VALUE_CHARS) -> str:
    """What `repr` would show of the value, cut; it stops as soon as there is enough."""
    pieces: list[str] = []
    with contextlib.suppress(_Enough):
        _render(tree, pieces, [max_chars + 1])
    return cut("".join(pieces), max_chars)


class _Enough(Exception):
    """The text is long enough."""


def _render(tree: Tree, pieces: list[str], room: list[int]) -> None:
    if not isinstance(tree, list):
        _put(repr(tree[: room[0]] if isinstance(tree, str) else tree), pieces, room)
        return
    tag = tree[0] if tree else None
    if not isinstance(tag, str) or tag not in _BRACKETS:
        _put(_scalar(tag, tree[1:], room[0]), pieces, room)
        return
    items = _compared(tree)
    if not items and tag in ("s", "z"):
        _put("set()" if tag == "s" else "frozenset()", pieces, room)
        return
    left, right = _BRACKETS[tag]
    _put(left, pieces, room)
    is_mapping = tag in (*_MAPPINGS, "ordered")
    for index, item in enumerate(items):
        if index:
            _put(": " if is_mapping and index % 2 else ", ", pieces, room)
        _render(item, pieces, room)
    _put("," + right if tag == "t" and len(items) == 1 else right, pieces, room)


def _scalar(tag: Tree, items: list[Tree], room: int) -> str:
    if tag == "i" and items and isinstance(items[0], str) and len(items[0]) > 3000:
        return f"<an int of about {4 * len(items[0])} bits>"
    if tag in ("b", "a", "u") and items and isinstance(items[0], str):
        items = [items[0][: 4 * room]]  # four characters are three bytes
    elif not (tag == "i" and len(items) == 1 and isinstance(items[0], str)) and not _is_short(items):
        return "<a long value>"
    try:
        value = values.decode([tag, *items])
    except ValueError:
        return "<garbage>"
    return repr(value)


def _is_short(items: list[Tree]) -> bool:
    for item in items:
        if isinstance(item, str) and len(item) > _LONG:
            return False
        if isinstance(item, list) and (
            len(item) > _LONG or any(isinstance(part, list) or len(str(part)) > _LONG for part in item)
        ):
            return False
    return True


def _put(text: str, pieces: list[str], room: list[int]) -> None:
    pieces.append(text)
    room[0] -= len(text)
    if room[0] <= 0:
        raise _Enough


def _texts(trees: list[Tree]) -> list[str]:
    return [values.text(_unsigned(tree)) for tree in trees]


def _unsigned(tree: Tree) -> Tree:
    """The tree with 0.0 for -0.0, which is equal to it, and with the elements of sets in one order."""
    if isinstance(tree, list):
        items = [_unsigned(item) for item in tree]
        return ["z", *sorted(items[1:], key=values.text)] if items and items[0] == "z" else items
    return 0.0 if isinstance(tree, float) and tree == 0 else tree
