"""An agent: a program that has the policy write several drafts, and answers with the shortest."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentgym import Agent, AgentContext
from agentgym.programs import Program

PROGRAM = """
import json, os, sys
from urllib.request import Request, urlopen

task = json.load(open("task.json"))
headers = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
body = json.dumps({"model": task["model"], "messages": task["messages"]}).encode()
drafts = []
for _ in range(task["drafts"]):
    with urlopen(Request(os.environ["URL"] + "/v1/chat/completions", body, headers)) as response:
        drafts.append(json.load(response)["choices"][0]["message"]["content"])
print(min(drafts, key=len), end="")
"""


@dataclass(frozen=True, kw_only=True)
class Drafts(Agent):
    """Answers with the shortest of several drafts."""

    drafts: int = 2
    """How often the policy is asked for one answer."""

    async def play(self, context: AgentContext) -> None:
        done = False
        while not done:
            with tempfile.TemporaryDirectory() as folder:
                given = {"messages": context.messages, "model": context.model, "drafts": self.drafts}
                (Path(folder) / "task.json").write_text(json.dumps(given))
                environ = {"URL": context.url, "KEY": context.key}
                program = Program([sys.executable, "-c", PROGRAM], folder=Path(folder), environ=environ)
                said = await program.run(time_s=60.0)
            done = (await context.answer(said)).done
