"""numpy's arrays and scalars as data, where there is numpy: a type, a shape and bytes."""

from __future__ import annotations

import binascii
import re
import sys
from typing import Any

TAG = "numpy"
_TYPES = re.compile(r"[<>|=]([biufcSU]\d{1,9}|[mM]8(\[\d{0,9}[a-zA-Z]{1,2}\])?)")
"""Of numbers, texts and times. Never of objects."""


def array_parts(value: object) -> list[Any] | None:
    """Type, shape (None: a scalar) and bytes of an array or a scalar of exactly numpy's types; None for another."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    is_array = type(value) is numpy.ndarray
    if not is_array and not (isinstance(value, numpy.generic) and type(value).__module__ == "numpy"):
        return None
    array = numpy.ascontiguousarray(value)
    if not _TYPES.fullmatch(array.dtype.str):
        return None
    data = binascii.b2a_base64(array.tobytes(), newline=False).decode("ascii")
    return [array.dtype.str, list(value.shape) if is_array else None, data]  # type: ignore[attr-defined]


def build_array(kind: object, shape: object, data: object) -> object:
    """The counterpart of `array_parts`. Raises ValueError for what is not an array, or where numpy is not installed."""
    if not (type(kind) is str and _TYPES.fullmatch(kind) and type(data) is str):
        raise ValueError("no array")
    sizes = shape if type(shape) is list else []
    if not (shape is None or type(shape) is list) or any(type(n) is not int or n < 0 for n in sizes):
        raise ValueError("no shape")
    try:
        import numpy
    except ImportError as error:
        raise ValueError("there is no numpy") from error
    array = numpy.frombuffer(bytearray(binascii.a2b_base64(data)), numpy.dtype(kind)).reshape(sizes)
    return array[()] if shape is None else array
