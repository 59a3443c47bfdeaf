"""The suite of metric sinks."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from agentgym.sinks import EpisodeSink, GroupSink, MetricSink, Source, StepEpisodes, share_of, show_group
from agentgym.testing.suite import Suite, expect, promise, skip
from agentgym.types import Episode, Group, Json, Outcome, Stop, Task

SINK = "agentgym.sinks:MetricSink"
CONFIG: Mapping[str, Json] = {"env": {"name": "math", "options": {}}, "loop": {"steps": 3}, "tags": ["a", None, 1.5]}
METRICS = {"train/loss": 1.5, "rollout/reward_mean": 0.0, "sandbox/calls_total": 1e9, "eval/success": -0.0}


class SinkConformance(Suite):
    """Subclass it in a test file, `class TestMine(SinkConformance)`, and define `make`; `read` too where files can be
    read back."""

    def make(self) -> MetricSink:
        """A new sink, not opened."""
        raise NotImplementedError("define `make`, which returns a new sink that is not open")

    def read(self, run_dir: Path) -> Mapping[str, Sequence[tuple[int, float]]] | None:
        """What the sink has of a run: step and value by the metrics' names. None where the place cannot be asked."""
        return None

    @promise(SINK, "Opened when the run starts, told every step")
    def test_every_value_arrives(self) -> None:
        with _Run() as folder:
            self._log(folder, {1: METRICS, 2: {"train/loss": 0.5}})
            found = self.read(Path(folder))
            if found is None:
                skip("`read` is not defined")
            expect("train/loss", list(found["train/loss"]), [(1, 1.5), (2, 0.5)])
            expect("the names", sorted(found), sorted(METRICS))

    @promise(SINK, "closed when it ends, however it ends")
    def test_close_is_safe_without_a_step_twice_and_where_open_failed(self) -> None:
        with _Run() as folder:
            with _opened(self.make(), folder) as sink:
                sink.close()
            self.make().close()

    @promise(SINK, "told every step")
    def test_numbers_that_are_not_finite_do_not_end_a_run(self) -> None:
        with _Run() as folder:
            self._log(folder, {1: {"train/kl": math.nan, "train/loss": math.inf}, 2: METRICS})

    @promise(SINK, "Opened when the run starts")
    def test_a_resumed_run_goes_on_in_its_folder(self) -> None:
        with _Run() as folder:
            self._log(folder, {1: METRICS, 2: METRICS})
            self._log(folder, {2: METRICS, 3: METRICS})  # step 2 is repeated
            found = self.read(Path(folder))
            if found is not None:
                expect("the steps", sorted({step for step, _ in found["train/loss"]}), [1, 2, 3])

    @promise("agentgym.sinks:GroupSink", "A metric sink that also shows episodes")
    def test_any_group_can_be_shown(self) -> None:
        with _Run() as folder:
            made = self.make()
            if not isinstance(made, GroupSink):
                skip("it shows no episodes")
            with _opened(made, folder) as sink:
                for step, group in enumerate(groups(), start=1):
                    show_group(sink, step, group)
                    sink.log(step, METRICS)

    @promise("agentgym.sinks:EpisodeSink.log_episodes", "The episodes of a step, before its `log`; of an evaluation")
    def test_episodes_of_every_source_are_taken(self) -> None:
        made = self.make()
        if not isinstance(made, EpisodeSink):
            skip("it gets no episodes")
        sources: tuple[Source, ...] = ("train", "eval", "sft")
        with _Run() as folder, _opened(made, folder) as sink:
            for step, source in enumerate(sources, start=1):
                made.log_episodes(StepEpisodes(step=step, source=source, groups=groups(), skipped=groups()[:1]))
                sink.log(step, METRICS)

    @promise("agentgym.sinks:StepEpisodes", "read them, and change nothing")
    def test_episodes_are_left_as_they_are(self) -> None:
        made = self.make()
        if not isinstance(made, EpisodeSink):
            skip("it gets no episodes")
        played = StepEpisodes(step=1, source="train", groups=groups()[:1])
        with _Run() as folder, _opened(made, folder):
            made.log_episodes(played)
        expect("the episodes after it", list(played.groups), groups()[:1])

    @promise("agentgym.sinks:EpisodeSink", "An attribute `episodes_share`, above 0 up to 1")
    def test_its_share_of_the_groups_is_one(self) -> None:
        share_of(self.make())

    @promise(SINK, "A thread of its own calls it")
    def test_a_thread_may_call_it(self) -> None:
        with _Run() as folder, ThreadPoolExecutor(1) as thread:
            thread.submit(self._log, folder, {1: METRICS}).result()

    def _log(self, folder: str, steps: Mapping[int, Mapping[str, float]]) -> None:
        with _opened(self.make(), folder) as sink:
            for step, metrics in steps.items():
                given = dict(metrics)
                sink.log(step, given)
                assert given.keys() == metrics.keys(), "it changed the metrics, which other sinks get too"


def groups() -> list[Group]:
    """Groups as a run has them: ordinary, with odd texts, not scored, and without advantages."""
    task = Task(task_id="sum-1", prompt=({"role": "user", "content": "1 + 1?"},), answer={"value": [2]})

    def episode(number: int, said: str, reward: float | None) -> Episode:
        return Episode(
            episode_id=f"e-{number}",
            task=task,
            seed=number,
            outcome=Outcome.INFRA_ERROR if reward is None else Outcome.SCORED,
            stop=Stop.DONE,
            reward=reward,
            rewards={"success": reward},
            info={} if reward is None else {"success": reward == 1.0},
            messages=[*task.prompt, {"role": "assistant", "content": said}],
        )

    plain = [episode(0, "3", 0.0), episode(1, "2", 1.0)]
    odd = [episode(2, "\ud800 <script> \x00 é\u2028", 0.0), episode(3, "x" * 100_000, None)]
    return [
        Group(group_id=7, task=task, start_version=3, episodes=plain, advantages=[-1.0, 1.0]),
        Group(group_id=8, task=task, start_version=3, episodes=odd, advantages=[0.5, None]),
        Group(group_id=9, task=task, start_version=3, episodes=plain),
    ]


@contextmanager
def _opened(sink: MetricSink, folder: str) -> Iterator[MetricSink]:
    sink.open(folder, CONFIG)
    try:
        yield sink
    finally:
        sink.close()


class _Run(tempfile.TemporaryDirectory[str]):
    """The folder of a run in a folder of runs."""

    def __enter__(self) -> str:
        folder = Path(super().__enter__()) / "runs" / "one"
        folder.mkdir(parents=True)
        return str(folder)
