"""What can be typed in `agentgym chat`, and what it does."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from agentgym.cli.chat_screen import Screen
from agentgym.cli.lines import LineReader
from agentgym.commands.shell import Shell
from agentgym.errors import UserError, nearest
from agentgym.policies.by_hand import HandEpisode
from agentgym.policies.conversation import CallHandler, CallRefused, CallRequest
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.episode import derive_seed
from agentgym.rollout.runner import EpisodeBroken
from agentgym.run.serving import Played
from agentgym.types import Message

Action = Callable[[str], Awaitable[None]]


class Chat(ABC):
    """Reads lines until the end of the input or /quit. A line that begins with / is a command."""

    HELP: str

    def __init__(self, shell: Shell, lines: LineReader, seed: int) -> None:
        self.shell, self.lines, self.seed = shell, lines, seed
        self.screen = Screen(shell, "policy")
        self.actions: dict[str, Action] = {"help": self._help}

    @abstractmethod
    async def say(self, text: str) -> None:
        """What a line that is no command does."""

    async def read(self) -> None:
        """Every line, until there is none. A mistake is answered, and ends nothing."""
        while True:
            if self.shell.is_terminal:
                print(self.shell.paint.bold("> "), end="", file=self.shell.out, flush=True)
            line = await self.lines.line()
            if line is None or line.strip() in ("/quit", "/exit"):
                return
            try:
                await self._do(line)
            except (UserError, CallRefused, EpisodeBroken) as error:
                self.screen.note(f"{error}")

    async def _do(self, line: str) -> None:
        if not line.startswith("/"):
            await self.say(line)
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self.actions:
            raise UserError(f"there is no /{name}.{nearest(name, [*self.actions, 'quit'])}")
        await self.actions[name](rest)

    async def _help(self, rest: str) -> None:
        self.shell.say(self.HELP.strip())


class PlainChat(Chat):
    """A chat without an environment: a line is what the user says, and the policy answers."""

    HELP = """
TEXT            say it; a line that ends with \\ goes on in the next
/retry          the policy's last answer again
/edit TEXT      say this in place of what you said last
/answer TEXT    put this in place of the policy's last answer
/system TEXT    begin anew, with these words of the system
/new            begin anew
/quit           end, as does Ctrl-D
"""

    def __init__(
        self, shell: Shell, lines: LineReader, config: RolloutConfig, handler: CallHandler, seed: int, *, greedy: bool
    ) -> None:
        super().__init__(shell, lines, seed)
        self._config, self._greedy = config, greedy
        self._handler, self._messages, self._tries = handler, list[Message](), 0
        self.actions |= {
            "retry": self._retry, "edit": self._edit, "answer": self._answer, "system": self._system, "new": self._new,
        }  # fmt: skip

    async def run(self) -> None:
        self.screen.note("say something; /help lists what else can be typed")
        await self.read()

    async def say(self, text: str) -> None:
        if not text.strip():
            return
        self._messages.append({"role": "user", "content": text})
        await self._ask()

    async def _ask(self) -> None:
        config, self._tries = self._config, self._tries + 1
        sampling = {
            "temperature": 0.0 if self._greedy else config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "seed": derive_seed(self.seed, self._tries),
        }
        request = CallRequest(messages=tuple(self._messages), max_tokens=config.max_turn_tokens, sampling=sampling)
        answer = await self._handler.call(request)
        said: Message = {"role": "assistant", "content": answer.content}
        self._messages.append(said)
        self.screen.thought(answer.reasoning)
        self.screen.message(said)
        if answer.finish == "length":
            self.screen.note(f"cut at {answer.completion_tokens} tokens (rollout.max_turn_tokens)")

    def _drop(self, role: str) -> None:
        """Take back what was said from the last message of this role on."""
        at = max((n for n, m in enumerate(self._messages) if m["role"] == role), default=-1)
        if at < 0:
            raise UserError("nothing was said yet")
        del self._messages[at:]

    async def _retry(self, rest: str) -> None:
        self._drop("assistant")
        await self._ask()

    async def _edit(self, rest: str) -> None:
        self._drop("user")
        await self.say(rest)

    async def _answer(self, rest: str) -> None:
        self._drop("assistant")
        self._messages.append({"role": "assistant", "content": rest})

    async def _system(self, rest: str) -> None:
        self._messages[:] = [{"role": "system", "content": rest}]

    async def _new(self, rest: str) -> None:
        self._messages[:] = [m for m in self._messages if m["role"] == "system"]


class EnvironmentChat(Chat):
    """An episode after another; an empty line lets the policy take its turn."""

    HELP = """
Enter           the policy takes its turn
/auto           it takes all turns, to the end of the episode
TEXT            answer in its place; a line that ends with \\ goes on in the next
/call NAME {..} call a tool in its place, with arguments as JSON
/edit TEXT      change the environment's last message, as the policy reads it
/retry          take the last turn back, and let the policy take it again
/back           take the last turn back
/task N         another task; /next is the one after it, /again begins this one anew
/show           the whole conversation; /tools lists the tools
/quit           end, as does Ctrl-D
"""

    def __init__(self, shell: Shell, lines: LineReader, env: str, played: Played, seed: int) -> None:
        super().__init__(shell, lines, seed)
        self._env, self._played, self._number = env, played, 0
        self._game: HandEpisode | None = None
        self.actions |= {
            "auto": self._auto, "call": self._call, "edit": self._edit, "retry": self._retry, "back": self._back,
            "task": self._task, "next": self._next, "again": self._again, "show": self._show, "tools": self._tools,
        }  # fmt: skip

    @property
    def game(self) -> HandEpisode:
        if self._game is None:
            raise UserError("no task is being played; choose one with /task N")
        return self._game

    async def run(self, number: int) -> None:
        try:
            await self._begin(number)
            await self.read()
        finally:
            if self._game is not None:
                await self._game.close()

    async def say(self, text: str) -> None:
        if text.strip():
            await self._turn(self.game.say(text))
        else:
            await self._policy()

    async def _policy(self) -> None:
        async def ask() -> None:
            answer = await self.game.ask()
            self.screen.thought(answer.reasoning)

        await self._turn(ask())

    async def _turn(self, turn: Awaitable[None]) -> None:
        """Take a turn and show it, what answered it, and the end."""
        game = self.game
        known = len(game.messages)
        await turn
        self.screen.messages(game.messages[known:])
        if game.is_over:
            self.screen.result(game.episode)
            self.screen.note("/retry takes the last turn again; /next, /task N and /again begin another episode")

    async def _begin(self, number: int) -> None:
        tasks = self._played.tasks
        if not 0 <= number < len(tasks):
            raise UserError(f"there is no task {number}; the split has 0 to {len(tasks) - 1}")
        if self._game is not None:
            await self._game.close()
        self._number, self._game = number, HandEpisode(self._played.table, tasks[number], seed=self.seed)
        task = tasks[number]
        self.screen.note(f"\n{self._env}, task {number} of {len(tasks)}: {task.task_id}")
        await self._game.begin()
        await self._show("")
        if tools := await self._game.schemas():
            self.screen.note("its tools:")
            self.screen.tools(tools)
        self.screen.note("Enter lets the policy take its turn; /help lists what else can be typed")

    async def _auto(self, rest: str) -> None:
        while not self.game.is_over:
            await self._policy()

    async def _call(self, rest: str) -> None:
        name, _, text = rest.strip().partition(" ")
        try:
            arguments = json.loads(text or "{}")
        except json.JSONDecodeError as error:
            raise UserError(f"{text!r} is not JSON: {error}") from None
        if not isinstance(arguments, Mapping):
            raise UserError(f'{text!r} is not a JSON object; write /call {name} {{"argument": "value"}}')
        await self._turn(self.game.call(name, arguments))

    async def _edit(self, rest: str) -> None:
        await self.game.edit(rest)
        self.screen.message(self.game.messages[-1])

    async def _retry(self, rest: str) -> None:
        await self.game.take_back()
        await self._policy()

    async def _back(self, rest: str) -> None:
        await self.game.take_back()
        await self._show("")

    async def _task(self, rest: str) -> None:
        if not rest.strip().isdigit():
            raise UserError(f"{rest.strip()!r} is not the number of a task; write /task 3")
        await self._begin(int(rest))

    async def _next(self, rest: str) -> None:
        await self._begin(self._number + 1)

    async def _again(self, rest: str) -> None:
        await self._begin(self._number)

    async def _show(self, rest: str) -> None:
        self.screen.messages(self.game.messages)

    async def _tools(self, rest: str) -> None:
        self.screen.tools(await self.game.schemas() or ())
