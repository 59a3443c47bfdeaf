"""What rollouts cost the controller: processor time of a turn and of a request's way to a replica, and memory.

    python benchmarks/rollout.py                        10,000 episodes at once, of 4 turns each
    python benchmarks/rollout.py --calls                every turn calls a tool
    python benchmarks/rollout.py --arms replicas line real
    python benchmarks/rollout.py --compare ../before    this tree and another checkout, taking turns

The arms: `turns`, episodes whose model answers every call after 50 ms with the same text; the tokenizer is the tiny
policy's, eight at a time have the same prompt, as in a group, and every answer of the environment is another text.
`replicas`, 20,000 requests of 2,000 callers at 10, 100 and 1,000 fake replicas, which answer after 50 ms; `direct` is
one without a service. `line`, 7,000 and 20,000 calls at once on two fake replicas with 64 slots each. `real`, 20,000
calls at once on two replicas in processes of their own. Prints one line of JSON, and a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.actors.runtime import Runtime
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings

HERE = Path(__file__).parent.parent
Figures = Mapping[str, float]
NUM_TURNS = 4
MODEL_S = 0.05
GROUP = 8
CALLERS, REQUESTS = 2_000, 20_000
CALLED = '<tool_call>\n{"name": "choose", "arguments": {"which": 2, "why": "It is larger."}}\n</tool_call><|im_end|>'
SAID = "I would rather take the other of the two.<|im_end|>"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def play(num_episodes: int, calls: bool = False) -> dict[str, float]:
    """All episodes at once, in this process. calls: each turn calls a tool."""
    import agentgym
    from agentgym.env import Environment, EpisodeContext, Reply
    from agentgym.rewards import Reward
    from agentgym.rollout.activity import Activity
    from agentgym.rollout.config import RolloutConfig
    from agentgym.rollout.episode import EpisodePlayer
    from agentgym.rollout.garbage import rare_collections
    from agentgym.rollout.scoring import Scorer
    from agentgym.text.chat import ChatRenderer
    from agentgym.text.tokenizer import HuggingFaceTokenizer
    from agentgym.types import Completion, Episode, FinishReason, GenerateRequest, Task, VersionSpan

    (policy,) = Path(agentgym.__file__).parent.glob("*/tiny/policy")
    tokenizer = HuggingFaceTokenizer(str(policy))
    ids = tokenizer.encode(CALLED if calls else SAID)
    completion = Completion(
        completion_ids=ids,
        logprobs=(-0.5,) * len(ids),
        versions=(VersionSpan(version=0, start=0, end=len(ids)),),
        finish_reason=FinishReason.STOP,
    )

    class Choices(Environment):
        name, rewards, max_turns = "choices", {"success": 1.0}, NUM_TURNS

        def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
            for number in itertools.count():
                prompt = ({"role": "user", "content": f"The first or the last, of {number}?"},)
                yield Task(task_id=f"choice/{number}", prompt=prompt, split=split)

        async def reply(self, context: EpisodeContext) -> Reply:
            done = context.turn == NUM_TURNS
            context.info["success"] = done
            asked = f"And which of {context.seed} and {context.turn}?"
            return Reply(messages=({"role": "user", "content": asked},), done=done)

    class World:
        def __init__(self, seed: int) -> None:
            self.seed, self.chosen = seed, 0

        def choose(self, which: int, why: str = "") -> dict[str, int]:
            """Choose one.

            Args:
                which: the number of the one to take
                why: the reason
            """
            self.chosen += 1
            return {"chosen": self.chosen * which, "left": self.seed}

    class Calls(Choices):
        tools = World

        async def start(self, context: EpisodeContext) -> World:
            return World(context.seed)

        async def after_calls(self, context: EpisodeContext) -> Reply:
            done = context.state.chosen == NUM_TURNS
            context.info["success"] = done
            return Reply(done=done)

    class Model:
        version = 0
        most_bytes = 0.0

        async def generate(self, request: GenerateRequest) -> Completion:
            await asyncio.sleep(MODEL_S)
            if request.sampling.seed is None or request.sampling.seed % 512 == 0:
                self.most_bytes = max(self.most_bytes, resident_bytes())
            return completion

        async def update_weights(self, version: int) -> None: ...

    def succeeded(episode: Episode) -> float:
        return float(bool(episode.info["success"]))

    model = Model()
    limits = RolloutConfig(max_episode_tokens=4096, episode_time_s=3600, generate_timeout_s=3600, env_timeout_s=3600)
    reward = Reward(name="success", function=succeeded, inline=True)
    async with Scorer([reward], {"success": 1.0}) as scorer:
        player = EpisodePlayer(
            environment=Calls() if calls else Choices(),
            renderer=ChatRenderer(tokenizer),
            generator=model,
            scorer=scorer,
            config=limits,
            sandbox=None,
            activity=Activity(),
        )
        drawn = player.environment.tasks("train")
        await player.play(next(drawn), episode_id="first", seed=1)  # what is made once, at first use
        tasks = [task for task in itertools.islice(drawn, -(-num_episodes // GROUP)) for _ in range(GROUP)]
        gc.collect()
        before_bytes, before_s, began = resident_bytes(), time.process_time(), time.monotonic()
        playing = (player.play(tasks[n], episode_id=f"e{n}", seed=n) for n in range(num_episodes))
        with rare_collections():  # as a run does
            episodes = await asyncio.gather(*playing)
        used_s, wall_s = time.process_time() - before_s, time.monotonic() - began
    turns = sum(len(episode.turns) for episode in episodes)
    assert turns == NUM_TURNS * num_episodes and all(episode.reward == 1.0 for episode in episodes)
    if calls:
        assert all([trace.result for trace in episode.tool_calls] == answers(episode.seed) for episode in episodes)
    most_bytes = max(model.most_bytes, resident_bytes())
    return {
        "cpu_us_per_turn": used_s / turns * 1e6,
        "bytes_per_episode": (most_bytes - before_bytes) / num_episodes,
        "wall_s": wall_s,
    }


def answers(seed: int) -> list[str]:
    return [f'{{"chosen": {2 * number}, "left": {seed}}}' for number in range(1, NUM_TURNS + 1)]


class Echo(ServiceActor):
    """A replica that answers after MODEL_S."""

    @endpoint
    async def answer(self, number: int) -> int:
        await asyncio.sleep(MODEL_S)
        return number


class FakeGroup:
    """A process group without processes."""

    num_answers, pids = 0, ()

    def __init__(self, name: str, answer_s: float) -> None:
        self.name, self._answer_s = name, answer_s
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, *, timeout_s: float) -> None: ...

    async def stop(self, *, timeout_s: float) -> None: ...

    async def call(self, method: object, *args: object, timeout_s: float | None) -> list[None]:
        return [None]

    async def call_one(self, method: object, number: int, *, timeout_s: float | None = None) -> int:
        await asyncio.sleep(self._answer_s)
        return number


async def fakes(count: int, *, answer_s: float = MODEL_S, slots: int = 4096) -> Service[Any]:
    def launch(index: int, name: str) -> Any:
        return FakeGroup(name, answer_s)

    service: Service[Any] = Service("fake", launch, num_replicas=count, settings=ServiceSettings(max_waiting=slots))
    await service.start()
    return service


async def watch_lag(lags_s: list[float], every_s: float = 0.01) -> None:
    """By how much the event loop is late, in seconds, each time that it is asked."""
    while True:
        due_s = time.monotonic() + every_s
        await asyncio.sleep(every_s)
        lags_s.append(time.monotonic() - due_s)


async def measured(name: str, ask: Callable[[int], Awaitable[int]], *, callers: int, requests: int) -> dict[str, float]:
    """Requests shared by callers, who make one after the other; processor time of one request in microseconds."""

    async def make(first: int) -> None:
        for number in range(first, requests, callers):
            assert await ask(number) == number

    lags_s: list[float] = []
    watching = asyncio.create_task(watch_lag(lags_s))
    began_s, used_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(make(first) for first in range(callers)))
    used_s, wall_s = time.process_time() - used_s, time.monotonic() - began_s
    watching.cancel()
    return {f"{name}_us": used_s / requests * 1e6, f"{name}_s": wall_s, f"{name}_lag_s": max(lags_s)}


async def of_replicas() -> dict[str, float]:
    group = FakeGroup("direct", MODEL_S)
    load = {"callers": CALLERS, "requests": REQUESTS}
    found = await measured("direct", partial(group.call_one, None), **load)
    for count in (10, 100, 1_000):
        service = await fakes(count)
        found |= await measured(f"replicas_{count}", partial(service.route, Echo.answer), **load)
        await service.close()
    return {name: figure for name, figure in found.items() if name.endswith("_us")}


async def of_line() -> dict[str, float]:
    found: dict[str, float] = {}
    for count in (7_000, 20_000):
        service = await fakes(2, answer_s=0.005, slots=64)
        found |= await measured(f"line_{count}", partial(service.route, Echo.answer), callers=count, requests=count)
        await service.close()
    return found


async def of_real() -> dict[str, float]:
    from rollout import Echo  # its processes import it by this name

    async with Runtime():
        service = await Echo.options(num_replicas=2).as_service()
        found = await measured("real", partial(service.route, Echo.answer), callers=REQUESTS, requests=REQUESTS)
        metrics = service.get_metrics()
        await service.close()
    return found | {name: metrics[name] for name in ("missed_probes_total", "respawns_total")}


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that imports this tree's packages instead of the installed ones."""
    if not (tree / "agentgym").is_dir():
        raise SystemExit(f"{tree} has no folder `agentgym`: give the root of a checkout")
    roots = [tree, tree / "envs", tree / "plugins", tree / "sandboxes", Path(__file__).parent]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, roots))}


def take_turns(trees: Sequence[Path], rounds: int, measure: Callable[[Path], Figures]) -> dict[Path, dict[str, float]]:
    """The median of each figure, by tree. Every other round begins with the other tree."""
    measured: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else trees[::-1]:
            measured[tree].append(measure(tree))
    return {
        tree: {key: statistics.median(figures[key] for figures in found) for key in found[0]}
        for tree, found in measured.items()
    }


def markdown(measured: Mapping[Path, Figures]) -> str:
    """A row for each tree."""
    keys = list(next(iter(measured.values())))
    rows = [[str(tree), *(_shown(figures[key]) for key in keys)] for tree, figures in measured.items()]
    lines = [["tree", *keys], ["---"] + ["--:"] * len(keys), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


ARMS: Mapping[str, Callable[[], Awaitable[Figures]]] = {"replicas": of_replicas, "line": of_line, "real": of_real}
"""All but `turns`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=["turns", *ARMS], default=["turns"])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--calls", action="store_true", help="every turn calls a tool")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each tree and arm; medians are printed")
    parser.add_argument("--compare", type=Path, metavar="TREE", help="another checkout")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        (arm,) = arguments.arms
        job = play(arguments.episodes, arguments.calls) if arm == "turns" else ARMS[arm]()
        print(json.dumps(asyncio.run(job)))  # type: ignore[arg-type]
        return

    def measure(tree: Path) -> Figures:
        found: dict[str, float] = {}
        for arm in arguments.arms:
            words = [sys.executable, __file__, "--once", "--arms", arm, "--episodes", str(arguments.episodes)]
            words += ["--calls"] if arguments.calls else []
            done = subprocess.run(words, env=environment(tree), stdout=subprocess.PIPE, text=True, check=True)
            found |= json.loads(done.stdout.splitlines()[-1])
        return found

    chosen = [HERE, *([arguments.compare.resolve()] if arguments.compare else [])]
    measured = take_turns(chosen, arguments.rounds, measure)
    settings = {"episodes": arguments.episodes, "turns": NUM_TURNS, "calls": arguments.calls}
    print(json.dumps(settings | {str(tree): figures for tree, figures in measured.items()}))
    print(markdown(measured))


if __name__ == "__main__":
    main()
