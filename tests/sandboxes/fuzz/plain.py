"""Random values that cross between processes, values that nearly equal them, and a slow, obvious comparison."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from random import Random

SCALARS: list[object] = [
    None, True, False, 0, 1, -1, 2, 63, 64, (1 << 62), (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1,
    1 << 200, 10**18,
    0.0, -0.0, 1.0, -1.0, 0.1, 0.30000000000000004, 1e-320, 1e308, 5e-324, float("inf"), float("-inf"),
    float("nan"),
    "", "1", "a", "é", "e\u0301", "\x00", "\ud800", "\udc00", "\ud83d\ude00", "😀", "\n", '"', "\\", "None",
    "l", "i", "nan", "&", "\u2028",
    b"", b"1", b"\x00", b"\xff\xfe", b"l", 0j, -0j, 1 + 0j, complex("nan"), complex(0.0, -0.0),
]  # fmt: skip
LIBRARY: list[object] = [
    range(3), range(0, 3, 1), range(0), range(5, 0, -2), slice(1), slice(None, 2, None), decimal.Decimal("1.0"),
    decimal.Decimal("1.00"), decimal.Decimal("NaN"), decimal.Decimal("1E+5"), fractions.Fraction(1, 3),
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 1, 1, 2, 3, 4, 5), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    datetime.time(1, 2),
    datetime.timedelta(days=-1, microseconds=1), datetime.timezone(datetime.timedelta(hours=2), "x"), int,
    str, ValueError,
    type(None), Ellipsis, NotImplemented,
]  # fmt: skip


def random_scalar(random: Random) -> object:
    roll = random.random()
    if roll < 0.55:
        return random.choice(SCALARS)
    if roll < 0.75:
        return random.randint(-5, 5) if roll < 0.68 else random.getrandbits(random.choice((8, 62, 63, 64, 65, 300)))
    if roll < 0.85:
        return random.uniform(-10, 10)
    return "".join(random.choice('ab01 é\ud800\udc00😀"\\\x00') for _ in range(random.randint(0, 6)))


def random_library(random: Random) -> object:
    """A value of the standard library's, often at the edge of its range."""
    number, zone = random.randint(-(10**9), 10**9), datetime.timedelta(minutes=random.randint(-1200, 1200))
    moment = datetime.datetime.min + datetime.timedelta(seconds=abs(number), microseconds=random.choice((0, 7)))
    aware = moment.replace(tzinfo=datetime.timezone(zone, "z"), fold=random.choice((0, 1)))
    return random.choice([
        *LIBRARY, *LIBRARY, range(number, -number, number or 1), fractions.Fraction(number, random.randint(1, 99)),
        decimal.Decimal(number).scaleb(random.randint(-99, 99)), moment.date(), moment.time(), aware, aware.timetz(),
        -zone,
    ])  # fmt: skip


def random_key(random: Random, depth: int = 0) -> object:
    """A value that can stand in a set."""
    if depth < 2 and random.random() < 0.2:
        kind: Callable[[list[object]], object] = random.choice((tuple, frozenset))
        return kind([random_key(random, depth + 1) for _ in range(random.randint(0, 3))])
    return random_scalar(random)


def random_value(random: Random, *, library: bool = True, depth: int = 0) -> object:
    """A value of the builtin types; library: and of the standard library's that cross."""
    roll = random.random()
    if depth > 3 or roll < 0.4:
        return random_library(random) if library and random.random() < 0.15 else random_scalar(random)

    def items(most: int = 4) -> list[object]:
        return [random_value(random, library=library, depth=depth + 1) for _ in range(random.randint(0, most))]

    def pairs() -> list[tuple[object, object]]:
        return [(random_key(random), item) for item in items(3)]

    if roll < 0.55:
        return items(random.choice((4, 4, 40)))
    if roll < 0.68:
        return tuple(items())
    if roll < 0.84:
        return dict(pairs())
    if roll < 0.94 or not library:
        kind: Callable[[list[object]], object] = random.choice((set, frozenset))
        return kind([random_key(random) for _ in range(random.randint(0, 4))])
    makers: list[Callable[[], object]] = [
        lambda: Counter(dict(pairs())), lambda: OrderedDict(pairs()), lambda: defaultdict(list, pairs()),
        lambda: deque(items()),
        lambda: deque(items(), maxlen=2), lambda: bytearray(b"ab"),
    ]  # fmt: skip
    return random.choice(makers)()


def typed_text(value: object) -> str:
    """A text that only equal values of equal types share: written apart from the codec, to check it.

    The order of a dict counts, that of a set does not; -0.0 is not 0.0.
    """
    kind = type(value).__name__
    if isinstance(value, (set, frozenset)):
        return f"{kind}{sorted(typed_text(item) for item in value)}"
    if isinstance(value, deque):
        return f"{kind} {value.maxlen} {[typed_text(item) for item in value]}"
    if isinstance(value, (list, tuple)):
        return f"{kind}{[typed_text(item) for item in value]}"
    if isinstance(value, defaultdict):
        return f"{kind} {value.default_factory} {typed_text(dict(value))}"
    if isinstance(value, dict):
        return f"{kind}{[(typed_text(key), typed_text(item)) for key, item in value.items()]}"
    if isinstance(value, (datetime.datetime, datetime.time)):
        return f"{kind} {value!r} {value.fold}"
    return f"{kind} {value!r}"


def equal(got: object, expected: object) -> bool:
    """Whether a case passes: equal, of equal types all the way down; nan is nan, and 0.0 is -0.0.

    The order of a dict does not count.
    """
    if type(got) is not type(expected):
        return False
    if isinstance(got, float):
        assert isinstance(expected, float)
        return got == expected or (math.isnan(got) and math.isnan(expected))
    if isinstance(got, complex):
        assert isinstance(expected, complex)
        return equal(got.real, expected.real) and equal(got.imag, expected.imag)
    if isinstance(got, (list, tuple, deque)):
        assert isinstance(expected, (list, tuple, deque))
        return len(got) == len(expected) and all(map(equal, got, expected))
    if isinstance(got, (set, frozenset)):
        assert isinstance(expected, (set, frozenset))
        return _equal_sets(list(got), list(expected))
    if isinstance(got, OrderedDict):
        assert isinstance(expected, OrderedDict)
        return equal([(k, v) for k, v in got.items()], [(k, v) for k, v in expected.items()])
    if isinstance(got, dict):
        assert isinstance(expected, dict)
        left = list(expected.items())
        for pair in got.items():
            match = next((other for other in left if equal(pair, other)), None)
            if match is None:
                return False
            left.remove(match) if match in left else None
        return len(got) == len(expected)
    if isinstance(got, decimal.Decimal):
        return got == expected or repr(got) == repr(expected)
    if isinstance(got, (datetime.datetime, datetime.time)):
        return typed_text(got) == typed_text(expected)
    return got == expected


def _equal_sets(got: list[object], expected: list[object]) -> bool:
    if len(got) != len(expected):
        return False
    left = list(expected)
    for item in got:
        place = next((index for index, other in enumerate(left) if equal(item, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def near_miss(random: Random, value: object) -> object:
    """A value that is easily taken for this one: often unequal, sometimes not."""
    if isinstance(value, (list, tuple)) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        changed = [*value[:place], near_miss(random, value[place]), *value[place + 1 :]]
        return changed if isinstance(value, list) else tuple(changed)
    if type(value) is dict and value and random.random() < 0.7:
        chosen = random.choice(list(value))
        return {key: near_miss(random, item) if key is chosen else item for key, item in value.items()}
    others = _likenesses(random, value)
    return random.choice(others) if others else random_scalar(random)


def _likenesses(random: Random, value: object) -> list[object]:
    if isinstance(value, bool) or value is None:
        return [int(bool(value)), str(value), float(bool(value)), value]
    if isinstance(value, int):
        found: list[object] = [value + 1, -value, str(value), value == 1, complex(value % 1000), value]
        return found + ([float(value)] if abs(value) < 1 << 300 else [])
    if isinstance(value, float):
        found = [-value, math.nextafter(value, 9), repr(value), complex(value), value]
        return found + ([int(value)] if math.isfinite(value) else [])
    if isinstance(value, str):
        return [
            value + " ",
            value.encode("utf-8", "surrogatepass"),
            [value],
            list(value),
            value[::-1],
            value.upper(),
            value,
        ]
    if isinstance(value, bytes):
        return [bytearray(value), value.decode("latin-1"), value + b"\0", value.hex(), list(value)]
    if isinstance(value, (list, tuple)):
        return [tuple(value), list(value), value[:-1], value[::-1], [value], deque(value), *value[:2]]
    if isinstance(value, (set, frozenset)):
        return [set(value), frozenset(value), list(value), set(list(value)[1:]), dict.fromkeys(value)]
    if isinstance(value, dict):
        turned = list(value.items())[::-1]
        return [
            dict(turned), OrderedDict(value), OrderedDict(turned), defaultdict(int, value),
            list(value.items()), turned, set(value),
        ]  # fmt: skip
    try:
        return [str(value), repr(value), value]
    except ArithmeticError:  # a Counter sorts its counts to show itself, and a Decimal nan has no order
        return [value]


def rebuilt(random: Random, value: object) -> object:
    """An equal value of equal type, its sets filled in another order."""
    if type(value) in (list, tuple):
        return type(value)(rebuilt(random, item) for item in value)  # type: ignore[call-arg,attr-defined]
    if type(value) in (set, frozenset):
        items = [rebuilt(random, item) for item in value]  # type: ignore[attr-defined]
        random.shuffle(items)
        grown = set(range(1000, 1000 + random.randint(0, 40)))  # its table keeps the size
        grown.clear()
        grown.update(items)  # type: ignore[arg-type]
        return type(value)(grown)  # type: ignore[call-arg]
    if type(value) is dict:
        return {rebuilt(random, key): rebuilt(random, item) for key, item in value.items()}
    return value
