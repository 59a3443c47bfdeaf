"""A model's own tokenizer and chat template, reduced to the few calls that a rollout needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentgym.errors import UserError
from agentgym.types import Message

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES: Mapping[str, str] = {"builtin:chatml": CHATML}


class Tokenizer(Protocol):
    """Text to ids and back; special tokens in the text become their ids."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an agent's turn."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """All tokens as text, special ones included."""
        ...

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The chat template's text."""
        ...


class HuggingFaceTokenizer:
    """The tokenizer of a local folder or a hub name."""

    def __init__(self, path: str, chat_template: str = "") -> None:
        """chat_template: empty is the model's own; `builtin:chatml`, or the path of a Jinja file."""
        from transformers import AutoTokenizer  # slow to import, so only here

        try:
            self._inner: Any = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise UserError(f"no tokenizer can be loaded from {path!r}: {error}") from error
        if chat_template:
            self._inner.chat_template = _read_template(chat_template)
        if not self._inner.chat_template:
            raise UserError(
                f"the tokenizer of {path!r} has no chat template; "
                "set model.chat_template to builtin:chatml or to a Jinja file"
            )
        if self._inner.eos_token_id is None:
            raise UserError(f"the tokenizer of {path!r} has no eos token, so no turn of an agent could end")
        self.special_tokens = tuple(sorted({str(token) for token in self._inner.all_special_tokens}))
        self.end_ids = self._find_end_ids()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(token_ids), skip_special_tokens=False))

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        return str(
            self._inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generation_prompt)
        )

    def _find_end_ids(self) -> tuple[int, ...]:
        end = int(self._inner.eos_token_id)
        turn_end = self._inner.convert_tokens_to_ids("<|im_end|>")
        ids = {end} if turn_end in (None, self._inner.unk_token_id) else {end, int(turn_end)}
        return tuple(sorted(ids))


def _read_template(given: str) -> str:
    if given in TEMPLATES:
        return TEMPLATES[given]
    path = Path(given)
    if not path.is_file():
        raise UserError(f"model.chat_template {given!r} is neither a file nor one of {', '.join(sorted(TEMPLATES))}")
    return path.read_text(encoding="utf-8")
