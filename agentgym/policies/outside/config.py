"""The settings of a policy that a server holds: where it is, how fast it may be asked, what its tokens cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from agentgym.types import Json

PREFIX = "openai:"
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
OMITTABLE = ("temperature", "top_p", "seed", "max_tokens")
OWN_FIELDS = ("model", "messages", "tools", "stream", "n", *OMITTABLE)


def served_name(path: str) -> str | None:
    """The model's name at its server, of `openai:NAME`; None for a path of another kind."""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Settings of a model.path `openai:MODEL`; all others ignore them.

    base_url: of any server with OpenAI's chat completions; empty is OpenAI's own. api_key_env: the name of the
    environment variable that holds the key; empty sends none, and to OpenAI itself the one in OPENAI_API_KEY.
    concurrency: requests in flight at once. timeout_s: of one request. max_retries: of one request, where the server
    is busy, failed, or answered what cannot be read; max_wait_s: the longest wait between two of them, and a server
    that asks for more has failed. requests_per_minute, tokens_per_minute: 0 is no limit.
    price_prompt, price_cached, price_completion: of a million tokens, in `currency`; cached ones cost as much as
    others if it is null. omit: of temperature, top_p, seed and max_tokens, those that are not sent. options: more
    fields of every request, for example reasoning_effort. return_reasoning: a turn's reasoning is sent back with it.
    cache: where answers are kept, so that none is paid twice: a folder; `off`; or `auto`, which is `.answers` in
    logging.evals_dir, but the evaluation's own folder for a server in this network, whose weights may change.
    """

    base_url: str = ""
    api_key_env: str = ""
    concurrency: int = 8
    timeout_s: float = 600.0
    max_retries: int = 6
    max_wait_s: float = 300.0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    price_prompt: float = 0.0
    price_cached: float | None = None
    price_completion: float = 0.0
    currency: str = "USD"
    omit: tuple[str, ...] = ()
    options: dict[str, Json] = field(default_factory=dict)
    return_reasoning: bool = False
    cache: str = "auto"

    def __post_init__(self) -> None:
        if self.base_url:
            self._check_url()
        for name, least in (("concurrency", 1), ("max_retries", 0), ("requests_per_minute", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"policy.{name} is {getattr(self, name)}; give at least {least}")
        if self.tokens_per_minute < 0:
            raise ValueError(
                f"policy.tokens_per_minute is {self.tokens_per_minute}; give at least 0, which is no limit"
            )
        for name in ("timeout_s", "max_wait_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"policy.{name} is {getattr(self, name)}; give more than 0 seconds")
        prices = (self.price_prompt, self.price_cached or 0.0, self.price_completion)
        if not all(0 <= price < math.inf for price in prices):
            raise ValueError(f"the prices of policy are {prices}; give what a million tokens cost, at least 0")
        if unknown := sorted({*self.omit} - {*OMITTABLE}):
            raise ValueError(f"policy.omit has {unknown[0]!r}; what can be left out is {', '.join(OMITTABLE)}")
        if own := sorted({*self.options} & {*OWN_FIELDS}):
            raise ValueError(
                f"policy.options sets {own[0]!r}, which is set from the recipe: rollout.temperature, rollout.top_p, "
                "rollout.max_turn_tokens, eval.seed; policy.omit leaves one out"
            )

    def _check_url(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"policy.base_url is {self.base_url!r}; give the address of a server, for example "
                "http://127.0.0.1:8000/v1"
            )
        if parts.username or parts.password or parts.query:
            raise ValueError(
                "policy.base_url holds a user, a password or a query, and it is saved with the evaluation; put the key "
                "into an environment variable and give its name as policy.api_key_env"
            )

    @property
    def url(self) -> str:
        """Where `/chat/completions` is; a URL without a path has it under /v1, as all known servers do."""
        given = self.base_url.rstrip("/") or OPENAI_URL
        return given if urlsplit(given).path else f"{given}/v1"

    @property
    def key_variable(self) -> str:
        """The environment variable that has the key; empty for none. OpenAI's key goes to no other server unasked."""
        return self.api_key_env or ("" if self.base_url else OPENAI_KEY)

    @property
    def is_near(self) -> bool:
        """Whether the server is in this network, by its name or address."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_private
        except ValueError:
            return "." not in host or host.endswith((".local", ".internal", ".localhost"))

    def cost(self, usage: Mapping[str, float]) -> float:
        """The cost of prompt_tokens, of which cached_tokens, and completion_tokens."""
        cached = min(usage.get("cached_tokens", 0), usage.get("prompt_tokens", 0))
        price_cached = self.price_prompt if self.price_cached is None else self.price_cached
        prompt = (usage.get("prompt_tokens", 0) - cached) * self.price_prompt + cached * price_cached
        return (prompt + usage.get("completion_tokens", 0) * self.price_completion) / 1e6
