"""A shop: items with a price and a stock that buying lowers."""

from __future__ import annotations

from agentgym.tools import ToolError
from agentgym_envs.tool_use.worlds.base import ToolFacts, World

_COUNTED = {"item": "name", "count": "number"}
FACTS = (
    ToolFacts(name="look", role="read", takes={"item": "name"}, fields=("price", "stock", "aisle")),
    ToolFacts(name="parcel", role="read", takes={"item": "name"}, fields=("weight", "fee")),
    ToolFacts(
        name="buy",
        role="act",
        takes=_COUNTED,
        fields=("order", "bay"),
        asked=("buy {number} of {name}", "get me {number} of {name}"),
        vague="buy some of {name}",
        sets="stock",
    ),
    ToolFacts(
        name="hold",
        role="act",
        takes=_COUNTED,
        fields=("slip", "counter"),
        asked=("hold {number} of {name}", "put {number} of {name} aside"),
        vague="hold some of {name}",
    ),
    ToolFacts(name="ad", role="stale", takes={"item": "name"}, fields=("price", "stock", "aisle"), twin="look"),
    ToolFacts(name="tariff", role="stale", takes={"item": "name"}, fields=("weight", "fee"), twin="parcel"),
    ToolFacts(name="rush", role="harm", takes=_COUNTED, fields=("order", "bay"), twin="buy"),
    ToolFacts(name="lock", role="harm", takes=_COUNTED, fields=("slip", "counter"), twin="hold"),
    ToolFacts(name="tag", role="broken", takes={"item": "name"}, fields=(), twin="look"),
)


class Shop(World):
    """Items on sale."""

    things = ("lamp", "desk", "sofa", "vase", "rug", "bed", "clock", "chair", "stool", "bench")

    def look(self, item: str) -> str:
        """An item's price, stock and aisle."""
        return self._read("look", item, "price", "stock", "aisle")

    def parcel(self, item: str) -> str:
        """The weight and fee of sending an item."""
        return self._read("parcel", item, "weight", "fee")

    def buy(self, item: str, count: int) -> str:
        """Buy an item."""
        left = self._figure("stock", item) - count
        if left < 0 < count:
            raise ToolError(f"only {left + count} in stock")
        text = self._act("buy", item, count, "order", "bay")
        self._set("stock", item, left)
        return text

    def hold(self, item: str, count: int) -> str:
        """Put an item aside."""
        return self._act("hold", item, count, "slip", "counter")

    def ad(self, item: str) -> str:
        """Last year's price, stock and aisle."""
        return self._old("ad", item, "price", "stock", "aisle")

    def tariff(self, item: str) -> str:
        """Last year's weight and fee."""
        return self._old("tariff", item, "weight", "fee")

    def rush(self, item: str, count: int) -> str:
        """Buy at double price, with no return."""
        return self._ruin("rush", item, count, "order", "bay")

    def lock(self, item: str, count: int) -> str:
        """Put an item aside and stop its sale."""
        return self._ruin("lock", item, count, "slip", "counter")

    def tag(self, item: str) -> str:
        """Read an item's tag."""
        return self._fail("tag", item, "look")
