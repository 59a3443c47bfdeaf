"""What tokens of a server's model cost: as its evaluation was given, or as a file of prices beside it says later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agentgym.config import build
from agentgym.errors import UserError
from agentgym.policies.outside.config import OPENAI_URL, served_name
from agentgym.yaml import read_yaml, value_at

PRICES = "prices.yaml"
"""In a folder of evaluations: prices by model, or by model@host. They hold for all evaluations in it, also for those
that were measured before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of a million tokens each. cached: of a prompt's; None is the price of other prompt tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not all(0 <= price < float("inf") for price in (self.prompt, self.completion, self.cached or 0.0)):
            raise ValueError(f"{self.prompt}, {self.cached}, {self.completion} are not prices; give 0 or more each")

    def cost(self, usage: Mapping[str, float]) -> float:
        """The cost of prompt_tokens, of which cached_tokens, and completion_tokens."""
        cached = min(usage.get("cached_tokens", 0), usage.get("prompt_tokens", 0))
        price_cached = self.prompt if self.cached is None else self.cached
        prompt = (usage.get("prompt_tokens", 0) - cached) * self.prompt + cached * price_cached
        return (prompt + usage.get("completion_tokens", 0) * self.completion) / 1e6


def prices_of(config: Mapping[str, object], evaluation: Path) -> Prices | None:
    """The prices for an evaluation: those of the file beside its folder, else its config's; None where none is known.

    Raises UserError for a file of prices that can't be read.
    """
    model, url = served_name(str(value_at(config, "model.path"))), str(value_at(config, "policy.base_url") or "")
    if not model:
        return None
    path = evaluation.absolute().parent / PRICES
    if path.is_file():
        found = read_yaml(path)
        key = f"{model}@{urlsplit(url or OPENAI_URL).hostname}"
        if isinstance(later := found.get(key, found.get(model)), Mapping):
            return build(Prices, later, where=f"{path}, {model}")
        if later is not None:
            raise UserError(f"{path}: the prices of {model} are {later!r:.80}; give {{prompt: ..., completion: ...}}")
    given = {name: value_at(config, f"policy.price_{name}") for name in ("prompt", "cached", "completion")}
    if not any(given.values()):
        return None
    known = {name: value for name, value in given.items() if value is not None}
    return build(Prices, {**known, "currency": value_at(config, "policy.currency") or "USD"}, where="policy")


def with_cost(usage: Mapping[str, float], prices: Prices | None) -> dict[str, float]:
    """The usage of an evaluation with `cost`, what its episodes are worth, and `paid_cost`, what was paid for it.

    Without prices it has neither.
    """
    tokens = {name: value for name, value in usage.items() if name not in ("cost", "paid_cost")}
    if prices is None or not tokens:
        return tokens
    paid = {name.removeprefix("paid_"): value for name, value in tokens.items() if name.startswith("paid_")}
    return {**tokens, "cost": prices.cost(tokens), "paid_cost": prices.cost(paid)}
