"""The environment: an agent does what a user asks, in worlds that it knows and changes by tools alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Final

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest
from agentgym.rewards import reward
from agentgym.tools import Tools
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.tool_use import requests
from agentgym_envs.tool_use.drawing import Question, draw, new_worlds, outcome, questions, snapshots
from agentgym_envs.tool_use.judging import asks, is_right
from agentgym_envs.tool_use.offered_tools import OfferedTools, offered_tools
from agentgym_envs.tool_use.plans import Plan
from agentgym_envs.tool_use.shapes import LEVELS
from agentgym_envs.tool_use.worlds import WORLDS, World, harm

MOST_COUNTED: Final = 64  # of the metrics; more calls than that are 64
NOTHING_MORE: Final = "I have no more to say. Go on."


@lru_cache(maxsize=8)
def _test_texts(levels: tuple[int, ...], worlds: tuple[str, ...], limit: int) -> frozenset[str]:
    """Takes half a second for 500 tasks."""
    return frozenset(drawn.text for drawn in questions("test", 0, levels, worlds, limit))


@dataclass(slots=True, kw_only=True)
class Job:
    """One episode: its plan, its worlds as they are now and as they should be, and the figures to reply with."""

    plan: Plan
    worlds: Mapping[str, World]
    wanted: Mapping[str, object]
    figures: tuple[int, ...]
    tools: OfferedTools
    turns: int
    asked: int = 0


class ToolUse(Environment[Job]):
    """Errands in five small worlds: a calendar, files, mail, a shop, and units with a calculator.

    Success is that the worlds are as they should be, nothing was harmed, the user was asked where only the user
    knows, and the last message ends with the numbers asked for, which only the tools tell. Among the tools are traps.
    An errand that no tool can do must be declined, with nothing changed.
    Recorded in `info`: success, state_ok, reply_ok (bool), calls, wrong_calls (failed, or of tools that the task does
    not need), traps (calls of tools that do something else), asked (questions to the user), harmful (bool: what was
    done cannot be undone), structure (what decides the split).
    """

    name: ClassVar[str] = "tool_use"
    rewards: ClassVar[Mapping[str, float]] = {"success": 1.0}
    max_turns: ClassVar[int] = max(level.turns for level in LEVELS.values())

    def __init__(
        self,
        *,
        levels: Annotated[
            Sequence[int],
            "from 1 (one call, two or three tools) to 5 (six to eight calls in several worlds, with traps)",
        ] = tuple(LEVELS),
        worlds: Annotated[Sequence[str], "which of calendar, files, mail, shop and units tasks are about"] = tuple(
            WORLDS
        ),
        test_tasks: Annotated[int, "tasks of the test split at most"] = 500,
        withhold_replies: Annotated[bool, "a control: every call is answered with the same word"] = False,
    ) -> None:
        """Raises UserError for a value that is not allowed."""
        if not levels or any(level not in LEVELS for level in levels):
            raise UserError(f"tool_use: levels is {list(levels)}; give some of {list(LEVELS)}")
        if unknown := [world for world in worlds if world not in WORLDS]:
            raise UserError(f"tool_use: no world {unknown[0]!r}.{nearest(unknown[0], WORLDS)}")
        if not worlds or test_tasks < 1:
            raise UserError(
                f"tool_use: worlds {list(worlds)}, test_tasks {test_tasks}: give at least one of "
                f"{', '.join(WORLDS)}, and test_tasks >= 1"
            )
        self._levels, self._worlds = tuple(levels), tuple(dict.fromkeys(worlds))
        self._test_tasks = test_tasks
        self._withhold = withhold_replies

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        limit = self._test_tasks if split == "test" else None
        for index, drawn in enumerate(questions(split, seed, self._levels, self._worlds, limit)):
            drawn = self.unseen(split, drawn, f"{seed}/{split}/{index}")
            yield Task(
                task_id=f"tool_use/{split}/{seed}/{index}",
                prompt=({"role": "system", "content": requests.SYSTEM}, {"role": "user", "content": drawn.text}),
                answer=drawn.plan.to_json(),
                split=split,
                difficulty=drawn.level,
            )

    def unseen(self, split: Split, drawn: Question, name: str) -> Question:
        """Drawn again where a task to train on has the words of one to test on (of seed 0), with other tools.

        What no tool can do is asked for in the words of what can be done, and its structure may be of another split.
        """
        while split == "train" and drawn.text in _test_texts(self._levels, self._worlds, self._test_tasks):
            name += "/again"
            drawn = draw(split, name, self._levels, self._worlds)
        return drawn

    async def start(self, context: EpisodeContext[Job]) -> Job:
        plan = Plan.from_json(context.task.answer)
        wanted, figures = outcome(plan)
        worlds = new_worlds(plan)
        needed = () if plan.shape.kind == "none" else tuple(step.tool for step in plan.shape.steps)
        context.info.update(success=False, state_ok=False, reply_ok=False, calls=0, wrong_calls=0, traps=0, asked=0)
        context.info.update(harmful=False, structure=plan.shape.key)
        return Job(
            plan=plan,
            worlds=worlds,
            wanted=wanted,
            figures=figures,
            tools=offered_tools(plan.offered, worlds, needed=needed, withhold=self._withhold),
            turns=LEVELS[context.task.difficulty].turns,
        )

    async def toolbox(self, context: EpisodeContext[Job]) -> Tools:
        return context.state.tools

    async def after_calls(self, context: EpisodeContext[Job]) -> Reply:
        job, info = context.state, context.info
        info["calls"], info["wrong_calls"], info["traps"] = (job.tools.calls, job.tools.wrong, len(job.tools.traps))
        info["harmful"] = any(harm(world) for world in job.worlds.values())
        return Reply(done=context.turn >= job.turns)

    async def reply(self, context: EpisodeContext[Job]) -> Reply:
        job, said = context.state, context.messages[-1]["content"]
        if asks(said) and context.turn < job.turns:
            job.asked += 1
            context.info["asked"] = job.asked
            answer = job.plan.answer if job.asked == 1 else None
            text = NOTHING_MORE if answer is None else f"{answer}."
            return Reply(messages=({"role": "user", "content": text},))
        heard = [message["content"] for message in context.messages if message["role"] == "user"]
        state_ok = snapshots(job.worlds) == job.wanted
        reply_ok = is_right(said, job.figures, heard)
        knows = job.asked > 0 or job.plan.answer is None
        context.info.update(success=state_ok and reply_ok and knows, state_ok=state_ok, reply_ok=reply_ok)
        return Reply(done=True)

    def structure(self, task: Task) -> str:
        """What the splits have apart: the plan without names, numbers and words."""
        return Plan.from_json(task.answer).shape.key

    def solve(self, task: Task) -> Iterator[Message]:
        return solution(Plan.from_json(task.answer))

    @reward(weight=0.0, high=MOST_COUNTED, inline=True)
    def num_calls(self, episode: Episode) -> float:
        """How many calls were made."""
        return _counted(episode, "calls")

    @reward(weight=0.0, high=MOST_COUNTED, inline=True)
    def wrong_calls(self, episode: Episode) -> float:
        """How many calls failed, or were of tools that the task does not need."""
        return _counted(episode, "wrong_calls")

    @reward(weight=0.0, inline=True)
    def harm(self, episode: Episode) -> float:
        """1.0 where something was done that cannot be undone."""
        return float(episode.info.get("harmful") is True)


def _counted(episode: Episode, key: str) -> float:
    count = episode.info.get(key, 0)
    return float(min(count, MOST_COUNTED)) if isinstance(count, int) else 0.0


def solution(plan: Plan) -> Generator[Message, tuple[Message, ...], None]:
    """What a good agent says: it asks if it must, makes the plan's calls one by one, and ends with the figures."""
    if plan.shape.kind == "none":
        yield {"role": "assistant", "content": requests.CANNOT}
        return
    if asked := requests.question(plan):
        yield {"role": "assistant", "content": asked}
    playing = plan.play()
    number = 0
    try:
        tool, arguments = next(playing)
        while True:
            number += 1
            answered = yield call_message(tool, arguments, f"call{number:05d}")
            tool, arguments = playing.send(" ".join(message["content"] for message in answered))
    except StopIteration as ended:
        figures = ended.value
    yield {"role": "assistant", "content": requests.final(figures)}


def call_message(tool: str, arguments: Mapping[str, Json], call_id: str) -> Message:
    """An assistant message that makes one call."""
    call = {"type": "function", "id": call_id, "function": {"name": tool, "arguments": dict(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
