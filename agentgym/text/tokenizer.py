"""A model's own tokenizer and chat template, reduced to the few calls that a rollout needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentgym.errors import UserError, nearest
from agentgym.text.template import ChatTemplate, Refused, Unbounded
from agentgym.text.tokenizer_files import check_tokenizer_files
from agentgym.types import Json, Message
from agentgym.utf8 import clean_text

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SYSTEM_IN_USER = (  # the first user message begins with what the system says
    "{{ bos_token }}{% set talk = messages %}{% set system = '' %}{% if messages[0].role == 'system' %}"
    "{% set talk = messages[1:] %}{% set system = messages[0].content + '\n\n' %}{% endif %}{% for message in talk %}"
    "{% set content = (system if loop.first else '') + message.content %}"
)
_MISTRAL = (
    "{% if message.role == 'assistant' %}SPACE{{ content + eos_token }}{% else %}[INST]SPACE{{ content }}[/INST]"
    "{% endif %}{% endfor %}"
)
TEMPLATES: Mapping[str, str] = {
    "builtin:chatml": CHATML,
    "builtin:gemma": _SYSTEM_IN_USER
    + "<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}\n{{ content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "builtin:mistral": _SYSTEM_IN_USER + _MISTRAL.replace("SPACE", " "),
    "builtin:mistral_tekken": _SYSTEM_IN_USER + _MISTRAL.replace("SPACE", ""),
    "builtin:plain": "{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}: "
    "{{ message.content }}{{ eos_token if message.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
}
"""For models that bring none, and for families whose own can't be continued with a system message."""
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
PLAIN_MODELS = ("llama", "qwen3")  # transformers believes such a class of these; of qwen2, say, it does not
TEMPLATE_ADVICE = f"Set model.chat_template to a Jinja file, or to one of {', '.join(TEMPLATES)}."


class Tokenizer(Protocol):
    """Text to ids and back; special tokens in the text become their ids."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an agent's turn whatever the template writes there."""

    @property
    def special_tokens(self) -> tuple[str, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """All tokens as text, special ones included."""

    def render(
        self, messages: Sequence[Message], *, generation_prompt: bool, tools: Sequence[Mapping[str, Json]] | None = None
    ) -> str:
        """The chat template's text. Raises UserError when it does not take the messages."""


class HuggingFaceTokenizer:
    """The tokenizer of a local folder or a hub name."""

    def __init__(self, path: str, chat_template: str = "") -> None:
        """chat_template: empty is the model's own; one of `TEMPLATES`, or the path of a Jinja file."""
        check_tokenizer_files(Path(path))
        try:
            self._inner: Any = _kind(Path(path)).from_pretrained(path)
        except Exception as error:  # its files are somebody else's, and so is the package that reads them
            check_tokenizer_files(Path(path), parse=True)
            raise UserError(
                f"no tokenizer can be loaded from {path!r}: {type(error).__name__}: {' '.join(str(error).split()):.500}"
            ) from error
        if chat_template:
            self._inner.chat_template = read_template(chat_template)
        if not self._inner.chat_template:
            raise UserError(f"the tokenizer of {path!r} has no chat template. {TEMPLATE_ADVICE}")
        if self._inner.eos_token_id is None:
            raise UserError(f"the tokenizer of {path!r} has no eos token, so no turn of an agent could end")
        added = [token.content for token in self._inner.added_tokens_decoder.values() if token.special]
        self.special_tokens = tuple(sorted({*added, *map(str, self._inner.all_special_tokens)}))
        self.end_ids = (int(self._inner.eos_token_id),)
        self._quick = _quick(self._inner, added)
        self._template = ChatTemplate(f"{path!r}{f', {chat_template!r},' if chat_template else ''}")

    def encode(self, text: str) -> tuple[int, ...]:
        try:
            if self._quick is not None:
                return tuple(self._quick.encode_batch_fast([text], add_special_tokens=False)[0].ids)
            return tuple(self._inner.encode(text, add_special_tokens=False))
        except (TypeError, UnicodeError):  # of an environment's file that no episode has played
            clean = clean_text(text)
            if clean == text:
                raise
            return self.encode(clean)

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._quick is not None:
            return str(self._quick.decode(token_ids, skip_special_tokens=False))
        return str(self._inner.decode(list(token_ids), skip_special_tokens=False))

    def render(
        self, messages: Sequence[Message], *, generation_prompt: bool, tools: Sequence[Mapping[str, Json]] | None = None
    ) -> str:
        given_tools = None if tools is None else list(tools)
        given = {"messages": list(messages), "tools": given_tools, "documents": None}
        try:
            template = self._inner.get_chat_template(None, given_tools)
            special = self._inner.special_tokens_map
            return self._template.render(template, {**given, "add_generation_prompt": generation_prompt, **special})
        except (Refused, ValueError, TypeError) as error:
            if isinstance(error, Unbounded):
                raise UserError(f"{error}. {TEMPLATE_ADVICE}") from error
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the chat template does not take the messages {roles}: {error}. Change what the environment says. "
                f"Or: {TEMPLATE_ADVICE}"
            ) from error


def _kind(folder: Path) -> Any:
    """The class of transformers that loads it. Both are slow to import, so only here.

    AutoTokenizer imports torch and more, which takes seconds; it is left out where it would choose the other one.
    """
    if _is_plain(folder):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _is_plain(folder: Path) -> bool:
    """A folder whose tokenizer is all in tokenizer.json, so that no class of its own is needed."""
    try:
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        model = json.loads((folder / "config.json").read_text("utf-8"))
        plain = tokenizer["tokenizer_class"] in PLAIN_CLASSES and model["model_type"] in PLAIN_MODELS
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):  # a hub name, or what transformers has words for
        return False
    return plain and "auto_map" not in tokenizer and (folder / "tokenizer.json").is_file()


def _quick(inner: Any, special: Sequence[str]) -> Any:
    """The tokenizer in transformers' wrapper, which costs more than the work; None unless it gives the same."""
    core = getattr(inner, "backend_tokenizer", None)
    if core is None or not hasattr(core, "encode_batch_fast"):
        return None
    text = " a ,b . don 't\n\n  x\t" + "  ".join(special[:50]) + "<s>\u00e9\u4e16\U0001f600 1234 "
    ids = inner.encode(text, add_special_tokens=False)  # its settings for padding and the like are made here
    same = core.encode_batch_fast([text], add_special_tokens=False)[0].ids == ids
    return core if same and core.decode(ids, skip_special_tokens=False) == inner.decode(ids) else None


def read_template(given: str) -> str:
    """The text of a template that a recipe names; "" of none. Raises UserError for what is no template."""
    if not given or given in TEMPLATES:
        return TEMPLATES.get(given, "")
    path = Path(given)
    if not path.is_file():
        raise UserError(f"model.chat_template {given!r} is neither a file nor a template.{nearest(given, TEMPLATES)}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"model.chat_template {given!r} can't be read: {error}") from error
