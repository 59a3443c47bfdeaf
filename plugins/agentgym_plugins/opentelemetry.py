"""The plugin `opentelemetry`: steps, episodes, turns, tool calls, sandbox calls and grading as traces, by OTLP."""

from __future__ import annotations

import importlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.sinks import StepEpisodes
from agentgym.types import Episode, Group, Json, SandboxTrace, ToolTrace

log = logging.getLogger(__name__)

BATCH: Final = 512  # spans of one request, OpenTelemetry's own default

Value: TypeAlias = "str | int | float | list[str]"
About: TypeAlias = "Mapping[str, Value]"


@dataclass(frozen=True, slots=True)
class Part:
    """What becomes a span. failed: why, of one that failed. inner: its own parts, one after another."""

    name: str
    seconds: float
    about: About
    failed: str = ""
    inner: tuple[Part, ...] = ()


class OpenTelemetrySink:
    """A trace for each step and each evaluation, with its episodes; an episode has its turns, tool calls and grading,
    and these and the episode have the calls of the sandbox that they made.

    exporter: any SpanExporter; None is OTLP over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT says.
    Durations are measured, but for turns, which share an episode's time in the generator by their sampled tokens.
    Places in time are not: an episode ends when its step does, and its parts follow each other.
    """

    def __init__(self, exporter: Any = None) -> None:
        self._exporter = exporter
        self._trace: Any = None  # its types are unavailable where it is not installed
        self._provider: Any = None
        self._tracer: Any = None
        self._ended: Any = None  # spans that are not exported yet
        self._waiting: list[StepEpisodes] = []  # for the metrics of their step
        self._warned = False

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when a package is missing."""
        try:
            self._trace = importlib.import_module("opentelemetry.trace")
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            if self._exporter is None:
                otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
                self._exporter = otlp.OTLPSpanExporter()
        except ImportError as error:
            raise UserError(
                "the sink 'opentelemetry' needs the packages `opentelemetry-sdk` and "
                f"`opentelemetry-exporter-otlp-proto-http`: {pip_install('opentelemetry')}, or leave it out of "
                "`logging.sinks`"
            ) from error
        about = {"service.name": "agentgym", "agentgym.run": Path(run_dir).resolve().name}
        resource = resources.Resource.create(about).merge(resources.OTELResourceDetector().detect())
        self._ended = memory.InMemorySpanExporter()  # the SDK's queues drop spans of a step with many episodes
        self._provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(export.SimpleSpanProcessor(self._ended))
        self._tracer = self._provider.get_tracer("agentgym")

    def log_episodes(self, played: StepEpisodes) -> None:
        assert self._tracer is not None, "open() comes first"
        if played.source == "eval":
            self._write(played.step, [played], {})
        else:
            self._waiting.append(played)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._tracer is not None, "open() comes first"
        played, self._waiting = self._waiting, []
        self._write(step, played, metrics)

    def close(self) -> None:
        """Safe to call twice."""
        if self._provider is not None:
            if self._waiting:  # the run ended before the step did
                self._write(self._waiting[-1].step, self._waiting, {})
            self._provider.shutdown()
            self._exporter.shutdown()
            self._provider = None

    def _write(self, step: int, played: Sequence[StepEpisodes], metrics: Mapping[str, float]) -> None:
        """One trace, exported at once. metrics: of the step; empty for an evaluation."""
        end_s = time.time()
        episodes = [
            (group, episode) for one in played for group in (*one.groups, *one.skipped) for episode in group.episodes
        ]
        took_s = metrics.get("time/step_s", max((_seconds(episode) for _, episode in episodes), default=0.0))
        source = played[0].source if played else "train"
        known = {key: value for key, value in metrics.items() if math.isfinite(value)}
        about: About = {**known, "agentgym.step": step, "agentgym.source": source}
        root = Part("evaluation" if source == "eval" else "step", took_s, about)
        span = self._begin(root, end_s - took_s, None)
        for group, episode in episodes:
            self._write_episode(span, end_s, group, episode)
        span.end(_nanoseconds(end_s))
        spans = self._ended.get_finished_spans()
        self._ended.clear()
        for begin in range(0, len(spans), BATCH):
            result = self._exporter.export(spans[begin : begin + BATCH])
            if result.name != "SUCCESS" and not self._warned:
                self._warned = True
                log.warning("the sink 'opentelemetry' can't export step %d; check OTEL_EXPORTER_OTLP_ENDPOINT", step)

    def _write_episode(self, parent: Any, end_s: float, group: Group, episode: Episode) -> None:
        about: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "agentgym.episode": episode.episode_id,
            "agentgym.task": episode.task.task_id,
            "agentgym.group": group.group_id,
            "agentgym.stop": str(episode.stop or ""),
            "agentgym.outcome": str(episode.outcome or ""),
        }
        if episode.reward is not None:
            about["agentgym.reward"] = episode.reward
        whole = Part("episode", _seconds(episode), about, str(episode.error or ""), tuple(_parts(episode)))
        self._write_part(whole, end_s - whole.seconds, parent)

    def _write_part(self, part: Part, begin_s: float, parent: Any) -> None:
        span, now_s = self._begin(part, begin_s, parent), begin_s
        for one in part.inner:
            self._write_part(one, now_s, span)
            now_s += one.seconds
        span.end(_nanoseconds(begin_s + part.seconds))

    def _begin(self, part: Part, begin_s: float, parent: Any) -> Any:
        context = self._trace.set_span_in_context(parent) if parent is not None else None
        attributes = {key: _clean(value) if isinstance(value, str) else value for key, value in part.about.items()}
        span = self._tracer.start_span(
            _clean(part.name), context, attributes=attributes, start_time=_nanoseconds(begin_s)
        )
        if part.failed:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, _clean(part.failed)))
        return span


def _parts(episode: Episode) -> Iterator[Part]:
    """The turns, each with its tool calls, and the grading and the rewards, in their order.

    Calls of the sandbox are inside of the tool call or the grading that made them, or after their turn.
    """
    made: dict[object, list[SandboxTrace]] = defaultdict(list)
    for one in episode.sandbox_calls:
        made[one.part if one.part is not None else ("turn", one.turn)].append(one)
    calls = [_call(call, made[place]) for place, call in enumerate(episode.tool_calls)]
    token_s = episode.timing_s.get("generate_s", 0.0) / max(1, episode.num_sampled_tokens)
    yield from _of_sandbox(made["turn", 0])
    for number, turn in enumerate(episode.turns, start=1):
        about: About = {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": len(turn.prompt_ids),
            "gen_ai.usage.output_tokens": len(turn.completion_ids),
            "gen_ai.response.finish_reasons": [str(turn.finish_reason)],
            "agentgym.turn": number,
        }
        yield Part("turn", token_s * len(turn.completion_ids), about)
        while calls and episode.tool_calls[-len(calls)].turn <= number:
            yield calls.pop(0)
        yield from _of_sandbox(made["turn", number])
    yield from calls  # a script that played the episode has calls and no turns
    for name in ("grade", "score"):
        inner = _of_sandbox(made[name])
        if inner or f"{name}_s" in episode.timing_s:
            seconds = episode.timing_s.get(f"{name}_s", sum(one.seconds for one in inner))  # unknown where it failed
            yield Part(name, seconds, {}, inner=inner)


def _call(call: ToolTrace, made: Sequence[SandboxTrace]) -> Part:
    about: About = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "agentgym.turn": call.turn,
        **({"error.type": call.error} if call.error else {}),
    }
    return Part(f"execute_tool {call.name}", call.seconds, about, call.error, _of_sandbox(made))


def _of_sandbox(calls: Sequence[SandboxTrace]) -> tuple[Part, ...]:
    def part(one: SandboxTrace) -> Part:
        about: About = {"agentgym.sandbox.call": one.name, "agentgym.sandbox.outcome": one.outcome}
        return Part(f"sandbox {one.name}", one.seconds, about, one.outcome if one.raised else "")

    return tuple(map(part, calls))


def _seconds(episode: Episode) -> float:
    """Of playing it and of its rewards."""
    return episode.timing_s.get("episode_s", 0.0) + episode.timing_s.get("score_s", 0.0)


def _clean(text: str) -> str:
    """Without lone surrogates, which OTLP cannot carry."""
    return text.encode("utf-8", "replace").decode()


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"opentelemetry": OpenTelemetrySink}
