"""The environment: episodes of an OpenEnv server, in words or with its tools."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.errors import UserError, nearest, pip_install
from agentgym.rewards import reward
from agentgym.tools import Tools
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym_envs.openenv.actions import ActionForm, Kind
from agentgym_envs.openenv.observations import messages_of, text_of
from agentgym_envs.openenv.play import Play, PlayTools, SessionSlots
from agentgym_envs.openenv.server import About, Server
from agentgym_envs.openenv.wire import Answered, Refused, ServerFault

Total: TypeAlias = Literal["sum", "last", "max"]
FIRST_TEST_SEED: Final = 1_000_000
MAX_SESSIONS: Final = 64


class OpenEnv(Environment[Play]):
    """Episodes of an OpenEnv server: at a URL, from a folder that is started in a Python of its own, or an image.

    Recorded in `info`: server (its name and version), return (of the rewards), steps, refused (actions that the server
    did not allow), success where `success_at` is given, and state where it is asked for.
    """

    name: ClassVar[str] = "openenv"
    max_turns: ClassVar[int] = 40
    requirements: ClassVar[str] = "pip install 'websockets>=15'"

    def __init__(
        self,
        *,
        url: Annotated[str, "of the server, as http://HOST:PORT"] = "",
        folder: Annotated[str, "of an OpenEnv environment, whose server is started here and ended"] = "",
        python: Annotated[
            str, "program that runs the folder's server, with openenv-core; by default the folder's .venv/bin/python"
        ] = "",
        image: Annotated[str, "Docker image whose server is started here and ended"] = "",
        variables: Annotated[Mapping[str, str] | None, "environment variables of a server that is started"] = None,
        key: Annotated[str, "sent as `Authorization: Bearer KEY`"] = "",
        version: Annotated[str, "that the server must have; empty takes any, and records it"] = "",
        reset: Annotated[Mapping[str, Json] | None, "fields of every reset besides seed and episode_id"] = None,
        prompt: Annotated[str, "what to do, in words; empty takes the server's description"] = "",
        action: Annotated[
            Kind,
            "how an action is said: tools (the server's), text (the whole turn), value (its last number or word), json "
            "(its last object), act (one tool with the action's fields); auto goes by the server's schema",
        ] = "auto",
        field: Annotated[str, "of the action, for text and value; empty takes the only one that is required"] = "",
        observation: Annotated[str, "field of the observation that is shown; empty shows all, or its messages"] = "",
        metadata: Annotated[bool, "whether the observation's metadata is shown, too"] = False,
        total: Annotated[Total, "what the rewards of the steps come to"] = "sum",
        low: Annotated[float, "the least total of an episode, which an invalid one earns"] = 0.0,
        high: Annotated[float, "the greatest total of an episode"] = 1.0,
        success_at: Annotated[float | None, "total from which on an episode is a success; None records none"] = None,
        state: Annotated[bool, "whether the server's state at the end is recorded in `info`"] = False,
        train_tasks: Annotated[int, "seeds of training, from 0 on"] = 10_000,
        test_tasks: Annotated[int, "seeds of the test split, from 1,000,000 on"] = 256,
        max_steps: Annotated[int, "turns of the agent at most"] = 40,
        max_refused: Annotated[int, "actions that the server refuses until the episode is invalid"] = 5,
        sessions: Annotated[int, "at a time, at most; fewer where the server says so"] = MAX_SESSIONS,
        answer_s: Annotated[float, "seconds until a server that does not answer has failed"] = 45.0,
        start_s: Annotated[float, "seconds until a server that is started here must answer"] = 120.0,
    ) -> None:
        """Raises UserError for what is missing, contradicts itself, or is not installed."""
        if importlib.util.find_spec("websockets") is None:
            raise UserError(f"openenv needs websockets, which is not installed: {pip_install('openenv')}")
        if total not in get_args(Total):
            raise UserError(f"openenv: no total {total!r}.{nearest(total, get_args(Total))}")
        if not low < high:
            raise UserError(f"openenv: low {low:g}, high {high:g}: low must be below high")
        counts = {
            "train_tasks": train_tasks, "test_tasks": test_tasks, "max_steps": max_steps, "max_refused": max_refused,
            "sessions": sessions,
        }  # fmt: skip
        for name, count in counts.items():
            if count < 1 or (name == "train_tasks" and count > FIRST_TEST_SEED):
                raise UserError(f"openenv: {name} is {count}; give 1 to {FIRST_TEST_SEED:,}")
        given = {"MAX_CONCURRENT_ENVS": str(sessions), **{key: str(one) for key, one in (variables or {}).items()}}
        self._server = Server.shared(
            url=url, folder=folder, python=python, image=image, variables=given, key=key, start_s=start_s
        )
        self._key, self._version, self._reset, self._prompt = key, version, dict(reset or {}), prompt
        self._kind: Kind = action
        self._field, self._observation, self._metadata, self._state = field, observation, metadata, state
        self._total, self._low, self._high, self._success_at = total, low, high, success_at
        self._train_tasks, self._test_tasks = train_tasks, test_tasks
        self._max_refused, self._sessions, self._answer_s = max_refused, sessions, answer_s
        self._slots: tuple[asyncio.AbstractEventLoop, SessionSlots] | None = None
        self.max_turns = max_steps  # type: ignore[misc]
        self.reward_ranges = {"server": (low, high)}

    def __getstate__(self) -> dict[str, Any]:
        """Without what cannot be sent to other processes."""
        return self.__dict__ | {"_slots": None}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """A task for each seed of the split; those of training in an order that `seed` fixes."""
        about = self._about()
        if split == "train":
            numbers = random.Random(seed).sample(range(self._train_tasks), self._train_tasks)
        else:
            numbers = list(range(FIRST_TEST_SEED, FIRST_TEST_SEED + self._test_tasks))
        form = ActionForm.of(about.action, self._kind, self._field)
        words = [part for part in (self._prompt or about.description, form.hint) if part]
        prompt: Message = {"role": "user", "content": "\n".join(words) or f"Act in {about.name}."}
        for number in numbers:
            yield Task(
                task_id=f"openenv/{about.name}/{number}",
                prompt=(prompt,),
                answer={"seed": number, **self._reset},
                split=split,
            )

    async def start(self, context: EpisodeContext[Play]) -> Play:
        about = await asyncio.to_thread(self._about)
        info = context.info
        info.update({"server": f"{about.name} {about.version}", "return": 0.0, "steps": 0, "refused": 0})
        if self._success_at is not None:
            info["success"] = False
        assert isinstance(context.task.answer, Mapping)
        reset = {**context.task.answer, "episode_id": f"{context.task.task_id}/{context.seed}"[-128:]}
        play = await Play.begin(self._server, self._slots_here(), reset, key=self._key, answer_s=self._answer_s)
        messages = None if self._observation or self._prompt else messages_of(play.first.observation)
        if messages:
            context.messages[:] = messages
        elif shown := self._text(play.first):
            context.messages[-1] = {"role": "user", "content": f"{context.messages[-1]['content']}\n\n{shown}"}
        return play

    async def toolbox(self, context: EpisodeContext[Play]) -> Tools | None:
        form = self._form()
        return await PlayTools.of(context.state, form) if form.kind in ("tools", "act") else None

    async def reply(self, context: EpisodeContext[Play]) -> Reply:
        play, form, said = context.state, self._form(), context.messages[-1]["content"]
        try:
            if isinstance(context.tools, PlayTools):
                if not context.tools.says:
                    return await self._after(context, None)  # who calls nothing has finished
                answered = await context.tools.say(said)
            else:
                answered = await play.step(form.read(said, play.last.observation))
        except Refused as refused:
            if form.field and refused.fields and not any(form.field in name.split(".") for name in refused.fields):
                message = f"its schema asks for the field {form.field!r} alone, and it refuses that: {refused}"
                raise ServerFault(f"{self._server.known().named}: {message}") from refused
            play.refused += 1
            return await self._after(context, f"That is not an action: {refused}.")
        return await self._after(context, answered)

    async def after_calls(self, context: EpisodeContext[Play]) -> Reply:
        return await self._after(context, "")

    async def finish(self, context: EpisodeContext[Play]) -> None:
        if context.state is not None:
            await context.state.close()

    @reward(name="server", weight=1.0, inline=True)
    def server_reward(self, episode: Episode) -> float:
        """What the server's rewards come to."""
        found = episode.info.get("return", 0.0)
        assert isinstance(found, int | float)
        return float(found)

    def close(self) -> None:
        """End the server that was started here; it starts again when it is needed."""
        self._server.close()

    async def _after(self, context: EpisodeContext[Play], shown: Answered | str | None) -> Reply:
        """Record what was earned. shown: an answer, or a text in its place; None ends the episode."""
        play = context.state
        total = self._total_of(play)
        done = shown is None or play.last.done
        context.info.update({"return": total, "steps": len(play.answers), "refused": play.refused})
        if self._success_at is not None:
            context.info["success"] = total >= self._success_at
        if self._state and done:
            context.info["state"] = dict(await play.connection.ask("state"))
        if play.refused >= self._max_refused:
            return Reply(invalid=True)
        if isinstance(shown, Answered):
            messages = None if self._observation else messages_of(shown.observation)
            text = self._text(shown)
            told = messages if messages is not None else [Message(role="user", content=text)] if text else []
        else:
            told = [Message(role="user", content=shown)] if shown else []
        return Reply(messages=tuple(told), done=done)

    def _total_of(self, play: Play) -> float:
        """Raises ServerFault for a total outside of the range that the options give."""
        rewards = [one.reward for one in play.answers if one.reward is not None]
        found = {"sum": sum(rewards), "last": rewards[-1] if rewards else 0.0, "max": max(rewards, default=0.0)}
        total = found[self._total]
        if play.last.done and not self._low <= total <= self._high:
            raise ServerFault(
                f"{self._server.known().named}: the {self._total} of the field `reward` is {total:g}, outside of "
                f"{self._low:g} to {self._high:g}; give the range as env.options.low and env.options.high"
            )
        return total

    def _text(self, answered: Answered) -> str:
        return text_of(answered.observation, field=self._observation, with_metadata=self._metadata)

    def _about(self) -> About:
        about = self._server.about()
        if self._version and about.version != self._version:
            raise UserError(
                f"{about.named} has the version {about.version!r}, and env.options.version is {self._version!r}: start "
                "that version, or give the one that runs"
            )
        return about

    def _form(self) -> ActionForm:
        return ActionForm.of(self._server.known().action, self._kind, self._field)

    def _slots_here(self) -> SessionSlots:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, SessionSlots(self._sessions))
        return self._slots[1]
