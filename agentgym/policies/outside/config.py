"""The settings of a policy that a server holds: where it is, how fast it may be asked, what its tokens cost."""

from __future__ import annotations

import math
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
    """A policy behind a server: where it is, how fast it may be asked, what its tokens cost."""

    base_url: str = ""
    """The address of any server with OpenAI's chat completions, as http://127.0.0.1:8000/v1; empty is OpenAI's own."""
    api_key_env: str = ""
    """The environment variable that holds the key; empty sends none, and to OpenAI itself that of OPENAI_API_KEY."""
    concurrency: int = 8
    """Requests in flight at the same time, of at most eight times as many episodes."""
    timeout_s: float = 600.0
    """Seconds of one request."""
    max_retries: int = 6
    """How often a request is repeated where the server is busy, failed, or answered what cannot be read."""
    max_wait_s: float = 300.0
    """The longest wait between two attempts, in seconds; a server that asks for more has failed."""
    requests_per_minute: int = 0
    """Requests in any 60 seconds; 0 is no limit."""
    tokens_per_minute: int = 0
    """Tokens of prompts and completions in any 60 seconds; 0 is no limit."""
    price_prompt: float = 0.0
    """The price of a million prompt tokens, in `currency`; without prices no cost is shown. A file prices.yaml in
    logging.evals_dir gives or changes prices later."""
    price_cached: float | None = None
    """The price of a million cached prompt tokens; null is that of other prompt tokens."""
    price_completion: float = 0.0
    """The price of a million completion tokens, in `currency`."""
    currency: str = "USD"
    """The currency of the prices, as it is shown."""
    omit: tuple[str, ...] = ()
    """Parameters that the server does not take and that are not sent: of temperature, top_p, seed and max_tokens."""
    options: dict[str, Json] = field(default_factory=dict)
    """More fields of every request, for example reasoning_effort."""
    return_reasoning: bool = False
    """Send a turn's reasoning back with it, as some models want when they call tools."""
    cache: str = "auto"
    """Where answers are kept, so that none is paid for twice: a folder, `off`, or `auto`, which is `.answers` in
    logging.evals_dir, but the evaluation's own folder for a server in this network, whose weights may change."""

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
