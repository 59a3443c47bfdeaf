"""The files of a tokenizer, checked before it is built of them: a wrong type or size is named with its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.runs.files import read_json

MAX_BYTES = 256 << 20  # the largest in use have some 35 MB
MAX_ID = 1 << 24
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Check = tuple[Callable[[Any], bool], str]


def check_tokenizer_files(folder: Path, *, parse: bool = False) -> None:
    """Raises UserError with the file and the field. parse: also build the tokenizer, which takes half a second."""
    for name, checks in (("tokenizer_config.json", _CONFIG), ("tokenizer.json", _TOKENIZER)):
        path = folder / name
        if not path.is_file():  # other kinds of tokenizers have other files
            continue
        fields = read_json(path, max_bytes=MAX_BYTES)
        for field, (is_right, allowed) in checks.items():
            if fields.get(field) is not None and not is_right(fields[field]):
                raise UserError(f"{path}: {field} is {fields[field]!r:.80}; it must be {allowed}")
        if parse and checks is _TOKENIZER:
            _parse(path)


def _parse(path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more special
        raise UserError(f"{path} is not a tokenizer: {error}") from error


def _is_token(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Mapping) and isinstance(value.get("content"), str))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_ID


def _are_added(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, Mapping) and _is_id(one.get("id")) and isinstance(one.get("content"), str) for one in value
    )


def _are_decoded(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        name.isdecimal() and len(name) < 9 and _is_id(int(name)) and isinstance(one, Mapping) and _is_token(one)
        for name, one in value.items()
    )


def _is_template(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, Mapping) and {"name", "template"} <= one.keys() for one in value)
    texts = value.values() if isinstance(value, Mapping) else [value]
    return all(isinstance(text, str) for text in texts)


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TOKEN: Check = (_is_token, "a text, or an object with a text as content")
_OBJECT: Check = (_is_a(dict), "an object")
_CONFIG: Mapping[str, Check] = {
    **dict.fromkeys(_SPECIAL, _TOKEN),
    "tokenizer_class": (_is_a(str, list), "a text"),
    "auto_map": _OBJECT,
    "chat_template": (_is_template, "a text, or a list of objects with name and template"),
    "added_tokens_decoder": (
        _are_decoded,
        f"an object of tokens, each an object with content, by ids below {MAX_ID:,}",
    ),
    "model_max_length": (_is_a(int, float), "a number"),
    "additional_special_tokens": (_is_a(list, dict), "a list of tokens"),
    "extra_special_tokens": (_is_a(list, dict), "a list of tokens"),
}
_TOKENIZER: Mapping[str, Check] = {
    "version": (_is_a(str), "a text"),
    "added_tokens": (_are_added, f"a list of objects with content and an id below {MAX_ID:,}"),
    "model": _OBJECT,
    **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder", "padding", "truncation"), _OBJECT),
}
