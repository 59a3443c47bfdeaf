"""A small package in the layout of tau2-bench, with a world and tasks of our own."""

from __future__ import annotations

from pathlib import Path

from benchmark_packages import write

TAU2_SHOP = """
import json
from pydantic import BaseModel
from tau2.data_model.message import Kind, Reply

class Found:
    def __init__(self, **values):
        self.__dict__.update(values)

class Order(BaseModel):
    status: str = "pending"

class DB(BaseModel):
    orders: dict[str, Order]

class Tools:
    def __init__(self, db):
        self.db = db

class Shop:
    policy = "Be kind."
    user_tools = None

    def __init__(self, db):
        self.tools = Tools(db)

    def get_tools(self):
        names = ("get_order", "cancel", "calculate")
        return [Found(openai_schema={"function": {"name": name, "description": name}}) for name in names]

    def set_state(self, initialization_data, initialization_actions, message_history):
        assert initialization_data is None and message_history == []

    def get_response(self, call):
        try:
            order = self.tools.db.orders[call.arguments["order_id"]]
        except KeyError as error:
            return Reply(content=f"Error: {error}", error=True)
        if call.name == "cancel":
            order.status = "cancelled"
        return Reply(content=json.dumps(order.model_dump()))

    def run_env_assertion(self, assertion, raise_assertion_error):
        return self.tools.db.orders["#2"].status == assertion

def get_environment(db=None):
    return Shop(db or DB(orders={"#1": Order(), "#2": Order()}))

class Action(BaseModel):
    name: str
    arguments: dict

    def compare_with_tool_call(self, call):
        return (self.name, self.arguments) == (call.name, call.arguments)

def task(key, basis, *calls, says=(), asserted=(), judged=()):
    actions = [Action(name=name, arguments={"order_id": order}) for name, order in calls]
    criteria = Found(actions=actions, reward_basis=[Kind(value=one) for one in basis], communicate_info=list(says),
                     env_assertions=list(asserted), nl_assertions=list(judged))
    user = Found(instructions=f"Wants {key}.")
    return Found(id=key, evaluation_criteria=criteria, initial_state=None, user_scenario=user, ticket=None)

def get_tasks(part):
    return [
        task("write", ["DB", "NL_ASSERTION"], ("cancel", "#1"), judged=["is kind"]),
        task("say", ["DB", "COMMUNICATE"], ("get_order", "#1"), says=["1200"]),
        task("look", ["DB", "COMMUNICATE"], ("get_order", "#2")),
        task("nothing", ["DB", "COMMUNICATE"]),
        task("act", ["ACTION"], ("get_order", "#2")),
        task("assert", ["ENV_ASSERTION"], ("cancel", "#2"), asserted=["cancelled"]),
    ]

def get_tasks_split():
    return {"train": ["say"], "test": ["write", "look", "nothing", "act", "assert"]}
"""
TAU2_MESSAGES = """
from pydantic import BaseModel

class ToolCall(BaseModel):
    id: str
    name: str
    arguments: dict
    requestor: str

class Reply(BaseModel):
    content: str
    error: bool = False

class Kind(BaseModel):
    value: str
"""


def write_tau2_bench(folder: Path) -> Path:
    """A checkout with the domain retail: one task for each kind of check, and one that silence passes."""
    package = folder / "src/tau2"
    write(package / "__init__.py", "raise ImportError('the clients of all models are missing')")
    write(package / "domains/retail/environment.py", TAU2_SHOP)
    write(
        package / "domains/retail/utils.py",
        f"from pathlib import Path\nRETAIL_DB_PATH = Path({str(folder)!r}) / 'db.json'",
    )
    write(package / "data_model/message.py", TAU2_MESSAGES)
    for name in ("db", "tasks"):
        write(folder / f"{name}.json", "{}")
    return folder
