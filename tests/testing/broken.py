"""Components that break one promise each, by the test that has to find it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import random
from typing import Any, Self, TextIO
from urllib.request import Request, urlopen

from local_session import LocalSessions

from agentgym.agents import Agent, AgentContext
from agentgym.errors import InfraError, UserError
from agentgym.rewards import Reward
from agentgym.sandbox import Capabilities, GradeRequest, Limits, RunResult, RunStatus, SandboxBackend, Verdict
from agentgym.sinks import MetricSink, StepEpisodes
from agentgym.testing import (
    AgentConformance,
    EnvironmentConformance,
    GradingConformance,
    RewardConformance,
    SandboxConformance,
    SessionConformance,
    SinkConformance,
    ToolFormatConformance,
)
from agentgym.testing.suite import Suite
from agentgym.text.tool_formats.base import Parsed
from agentgym.text.tool_formats.hermes import Hermes
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Episode, Group, Json, Message, SandboxSpec
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

Broken = Mapping[str, Callable[[], Any] | Mapping[str, object]]
"""`make`, or all attributes of a suite's subclass, by the test that has to fail."""


class Unfrozen(Hermes):
    """Not a dataclass of its own, so its fields are no settings."""


@dataclass(frozen=True)
class Changed(Hermes):
    parsed: Callable[[Parsed], Parsed] = lambda parsed: parsed
    written: Callable[[str], str] = lambda content: content

    def parse(self, text: str) -> Parsed:
        return self.parsed(super().parse(text))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return super().write(calls, self.written(content))


class Typed(Changed):
    def parse_ids(self, token_ids: Sequence[int], tokenizer: Any) -> Parsed:
        return self.parse(tokenizer.decode(token_ids))


def named(parsed: Parsed) -> Parsed:
    calls = (replace(c, name=c.name.lower()) if isinstance(c, ToolCall) else c for c in parsed.calls)
    return replace(parsed, calls=tuple(calls))


def strict(parsed: Parsed) -> Parsed:
    if any(isinstance(call, MalformedCall) for call in parsed.calls):
        raise ValueError("cannot be read")
    return parsed


def faults(parsed: Parsed, change: Callable[[MalformedCall], list[MalformedCall]]) -> Parsed:
    calls = [one for call in parsed.calls for one in (change(call) if isinstance(call, MalformedCall) else [call])]
    return replace(parsed, calls=tuple(calls))


FORMATS: Broken = {
    "test_a_recipe_can_choose_it_by_its_import_path": Unfrozen,
    "test_a_call_is_read_as_it_was_written": lambda: Changed(named),
    "test_several_calls_keep_their_order": lambda: Changed(lambda p: replace(p, calls=p.calls[::-1])),
    "test_what_was_said_before_calls_is_kept": lambda: Changed(written=str.upper),
    "test_a_turn_without_calls_is_content": lambda: Changed(lambda p: replace(p, content=p.content.strip())),
    "test_damaged_texts_never_raise": lambda: Changed(strict),
    "test_damaged_calls_are_malformed": lambda: Changed(lambda p: faults(p, lambda call: [])),
    "test_a_fault_is_one_short_line": lambda: Changed(lambda p: faults(p, lambda call: [replace(call, fault="a\nb")])),
    "test_typed_markers_are_not_calls": Typed,
}


@dataclass
class Sandbox(SandboxBackend):
    """Right in all but what is changed here."""

    able: Mapping[str, Any] = ()  # type: ignore[assignment]
    result: Callable[[RunResult], RunResult] = lambda result: result
    verdict: Callable[[Verdict], Verdict] = lambda verdict: verdict
    program: Callable[[str, str, list[str]], tuple[str, str]] = lambda code, stdin, earlier: (code, stdin)
    request: Callable[[GradeRequest, list[str]], GradeRequest] = lambda request, earlier: request
    measured: Mapping[str, float] = ()  # type: ignore[assignment]
    sessions: bool = False
    one_at_a_time: bool = False
    closes_once: bool = False
    leaves_a_task: bool = False
    forgives: Verdict | None = None
    name = "unsafe_subprocess"

    def __post_init__(self) -> None:
        self.inner = UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True))
        self.earlier: list[str] = []
        self.lock = asyncio.Lock()
        self.tasks: list[object] = []

    def supports(self, spec: SandboxSpec) -> bool:
        return self.sessions or self.inner.supports(spec)

    async def probe(self) -> Capabilities:
        return replace(await self.inner.probe(), **dict(self.able))

    async def start(self) -> Self:
        await self.inner.start()
        if self.leaves_a_task:
            self.tasks.append(asyncio.create_task(asyncio.sleep(1e6)))
        return self

    async def close(self) -> None:
        await self.inner.close()
        if self.closes_once:
            self.close = self.inner.name  # type: ignore[method-assign, assignment]

    def metrics(self) -> dict[str, float]:
        return dict(self.measured)

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        code, stdin = self.program(code, stdin, self.earlier)
        self.earlier.append(code)
        if not self.one_at_a_time:
            return self.result(await self.inner.run(code, stdin=stdin, limits=limits))
        async with self.lock:
            return self.result(await self.inner.run(code, stdin=stdin, limits=limits))

    async def grade(self, request: GradeRequest) -> Verdict:
        request = self.request(request, self.earlier)
        self.earlier.append(request.code)
        try:
            return self.verdict(await self.inner.grade(request))
        except (InfraError, UserError):
            if self.forgives is None:
                raise
            return self.forgives


def judged(passed: bool | None, **changed: Any) -> Callable[[Verdict], Verdict]:
    """All results are this; None leaves them."""

    def change(verdict: Verdict) -> Verdict:
        results = tuple(one if passed is None else replace(one, passed=passed, error="") for one in verdict.results)
        return replace(verdict, results=results, **changed)

    return change


FORGIVEN = Verdict(status=RunStatus.ERROR, results=())
SANDBOXES: Broken = {
    "test_probe_reports_its_name_and_one_line": lambda: Sandbox({"backend": "other"}),
    "test_close_is_safe_to_call_twice_and_before_the_start": lambda: Sandbox(closes_once=True),
    "test_close_leaves_no_process_and_no_task": lambda: Sandbox(leaves_a_task=True),
    "test_metrics_are_numbers_named_after_the_sandbox": lambda: Sandbox(measured={"calls": 1.0}),
    "test_sessions_are_served_by_backends_that_report_them": lambda: Sandbox(sessions=True),
    "test_a_program_runs_and_what_it_prints_comes_back": lambda: Sandbox(result=lambda r: replace(r, stdout="")),
    "test_bytes_are_the_text_as_written": lambda: Sandbox(result=lambda r: replace(r, stdout_bytes=b"")),
    "test_a_failing_program_is_an_error_with_its_message": lambda: Sandbox(
        result=lambda r: replace(r, status=RunStatus.OK)
    ),
    "test_a_program_reads_its_standard_input": lambda: Sandbox(program=lambda code, stdin, earlier: (code, "")),
    "test_output_is_cut_and_says_so": lambda: Sandbox(result=lambda r: replace(r, truncated=False)),
    "test_an_endless_program_ends_at_its_wall_limit": lambda: Sandbox(result=lambda r: replace(r, limit=None)),
    "test_a_flood_of_output_is_ended": lambda: Sandbox(
        program=lambda code, stdin, earlier: (code.replace("while True", "for _ in range(9)"), stdin)
    ),
    "test_other_calls_go_on_beside_an_endless_one": lambda: Sandbox(one_at_a_time=True),
    "test_no_call_sees_what_another_left": lambda: Sandbox(
        program=lambda code, stdin, earlier: ("\n".join([*earlier, code]), stdin)
    ),
}
GRADERS: Broken = {
    "test_a_right_solution_passes_every_case": lambda: Sandbox(verdict=judged(False)),
    "test_each_case_is_judged_by_itself": lambda: Sandbox(verdict=lambda v: replace(v, results=v.results[:1])),
    "test_a_failed_case_says_why": lambda: Sandbox(verdict=judged(False)),
    "test_a_solution_that_does_not_load_fails_every_case": lambda: Sandbox(verdict=judged(None, status=RunStatus.OK)),
    "test_what_was_judged_before_a_timeout_counts": lambda: Sandbox(verdict=judged(False)),
    "test_types_count": lambda: Sandbox(verdict=judged(True)),
    "test_tolerance_is_for_floats_only": lambda: Sandbox(verdict=judged(True)),
    "test_arguments_that_change_in_place_are_compared": lambda: Sandbox(verdict=judged(True)),
    "test_an_iterator_can_be_compared_as_a_list": lambda: Sandbox(verdict=judged(False)),
    "test_assertions_see_the_solution_by_both_names": lambda: Sandbox(verdict=judged(False)),
    "test_programs_are_compared_by_what_they_print": lambda: Sandbox(verdict=judged(False)),
    "test_assertions_see_the_prelude": lambda: Sandbox(request=lambda r, earlier: replace(r, prelude="")),
    "test_a_broken_prelude_is_not_the_solutions_fault": lambda: Sandbox(forgives=FORGIVEN),
    "test_a_case_that_is_no_plain_value_is_the_users_mistake": lambda: Sandbox(forgives=FORGIVEN),
    "test_no_solution_sees_another_ones_names": lambda: Sandbox(
        request=lambda r, earlier: replace(r, code="\n".join([*earlier, r.code]))
    ),
}

FAULTY = Path(__file__).parents[1] / "data" / "faulty"


def faulty(name: str, *only: str) -> Mapping[str, object]:
    return {"environment": f"{FAULTY}/{name}", "only": only, "num_tasks": 16}


ENVIRONMENTS: Broken = {
    "test_a_seed_gives_the_same_tasks_in_every_process": faulty("broken.py:DrawsOnSelf", "processes"),
    "test_every_split_has_tasks_and_test_ends": faulty("broken.py:NoTrain", "tasks"),
    "test_no_task_is_in_both_splits": faulty("broken.py:Overlaps", "tasks"),
    "test_answers_can_be_saved": faulty("broken.py:AnswerIsASet", "tasks"),
    "test_tasks_can_be_played": faulty("broken.py:NotATask", "tasks"),
    "test_no_call_keeps_other_episodes_waiting": {**faulty("broken.py:Blocks", "oracle"), "num_tasks": 2},
    "test_episodes_do_not_disturb_each_other": faulty("broken.py:StateOnSelf", "together"),
    "test_what_solve_says_is_rewarded_as_right": faulty("broken.py:OracleLoses", "oracle"),
    "test_whatever_is_said_is_answered": faulty("broken.py:ReplyRaises", "garbage"),
    "test_rewards_keep_their_range_and_are_the_same_in_every_process": faulty("broken.py:RewardIsNan", "empty"),
    "test_nothing_but_a_right_answer_is_rewarded_like_one": faulty("gamed.py:AnyAnswer", "wrong"),
}


def first_letter(episode: Episode) -> float:
    return float(episode.messages[-1]["content"][0] == "4")


def nested() -> Callable[[Episode], float]:
    def only_here(episode: Episode) -> float:
        return 1.0

    return only_here


REWARDS: Broken = {
    "test_whatever_was_said_is_scored_in_its_range_and_in_time": lambda: Reward(
        name="first", function=first_letter, inline=True
    ),
    "test_a_plain_function_can_be_imported_by_its_process": nested,
    "test_a_reward_of_groups_runs_on_the_event_loop": lambda: Reward(
        name="group", function=first_letter, scope="group"
    ),
}


@dataclass
class Lines(MetricSink):
    """Values as lines of a file, with one fault."""

    fault: str = ""
    file: TextIO | None = None
    num_closed: int = 0

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        if self.fault == "main thread" and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("it was opened by another thread")
        path = Path(run_dir) / "lines.txt"
        if self.fault == "starts again":
            path.unlink(missing_ok=True)
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.file is not None
        shown = {name: value for name, value in metrics.items() if self.fault != "forgets" or value == 1.5}
        self.file.write(json.dumps([step, shown], allow_nan=self.fault != "finite") + "\n")

    def log_group(self, step: int, group: Group) -> None:
        assert self.file is not None
        encoded = [message["content"] for episode in group.episodes for message in episode.messages]
        if self.fault == "encodes":
            "".join(encoded).encode()

    def log_episodes(self, played: StepEpisodes) -> None:
        if self.fault == "trains only" and played.source != "train":
            raise ValueError(played.source)
        if self.fault == "changes":
            played.groups[0].episodes.clear()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.num_closed += 1
        if self.fault == "closes once" and self.num_closed > 1:
            raise ValueError("closed already")


class Greedy(Lines):
    episodes_share = 2.0


def read_lines(suite: object, run_dir: Path) -> Mapping[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (run_dir / "lines.txt").read_text().splitlines():
        step, metrics = json.loads(line)
        for name, value in metrics.items():
            found.setdefault(name, []).append((step, value))
    return found


def lines(fault: str) -> Mapping[str, object]:
    return {"make": lambda self: Lines(fault), "read": read_lines}


SINKS: Broken = {
    "test_every_value_arrives": lines("forgets"),
    "test_close_is_safe_without_a_step_twice_and_where_open_failed": lines("closes once"),
    "test_numbers_that_are_not_finite_do_not_end_a_run": lines("finite"),
    "test_a_resumed_run_goes_on_in_its_folder": lines("starts again"),
    "test_any_group_can_be_shown": lines("encodes"),
    "test_episodes_of_every_source_are_taken": lines("trains only"),
    "test_episodes_are_left_as_they_are": lines("changes"),
    "test_its_share_of_the_groups_is_one": {"make": lambda self: Greedy()},
    "test_a_thread_may_call_it": lines("main thread"),
}


@dataclass(frozen=True, kw_only=True)
class Passing(Agent):
    """Passes on what the policy says, with one fault."""

    fault: str = ""
    shared: dict[str, Any] = field(default_factory=dict)

    async def check(self) -> None:
        if self.fault == "refuses":
            raise UserError("no such program")

    async def play(self, context: AgentContext) -> None:
        done = False
        if self.fault == "leaves a task":
            self.shared["task"] = asyncio.create_task(asyncio.sleep(1e6))
        while not done:
            messages = context.messages
            if self.fault == "shares":
                messages = self.shared.setdefault("messages", messages)
            said = "apple" if self.fault == "knows" else await asyncio.to_thread(ask, context, messages)
            done = (await context.answer(said + (f" {random()}" if self.fault == "draws" else ""))).done

    async def close(self) -> None:
        if self.fault == "closes once" and self.shared.setdefault("closed", False):
            raise ValueError("closed already")
        self.shared["closed"] = True


class UnfrozenAgent(Passing): ...


def ask(context: AgentContext, messages: Sequence[Message]) -> str:
    body = json.dumps({"model": context.model, "messages": messages}).encode()
    headers = {"authorization": f"Bearer {context.key}", "content-type": "application/json"}
    with urlopen(Request(f"{context.url}/v1/chat/completions", body, headers)) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
        return said


AGENTS: Broken = {
    "test_a_recipe_can_choose_it_by_its_import_path": UnfrozenAgent,
    "test_check_passes_where_it_can_play": lambda: Passing(fault="refuses"),
    "test_an_episode_is_played_to_its_end": lambda: Passing(fault="knows"),
    "test_episodes_at_the_same_time_do_not_disturb_each_other": lambda: Passing(fault="shares"),
    "test_equal_seeds_lead_to_the_same_conversation": lambda: Passing(fault="draws"),
    "test_nothing_is_left_of_an_episode_that_is_cancelled": lambda: Passing(fault="leaves a task"),
    "test_close_leaves_nothing_and_is_safe_to_call_twice": lambda: Passing(fault="closes once"),
}
SESSIONS: Broken = {
    test: partial(LocalSessions, fault=fault)
    for test, fault in {
        "test_a_session_begins_without_what_another_left": "shares",
        "test_names_last_from_run_to_run": "forgets",
        "test_the_value_of_a_last_expression_is_printed": "shows no value",
        "test_an_endless_run_is_interrupted_and_keeps_the_names": "loses names",
        "test_a_command_is_a_line_for_the_shell_or_a_list_of_words": "joins words",
        "test_only_regular_files_of_the_work_folder_are_read": "reads all",
        "test_files_are_made_and_replaced_in_the_work_folder": "writes anywhere",
        "test_files_are_listed_sorted_and_without_links": "unsorted",
        "test_reset_leaves_nothing": "keeps names",
        "test_a_snapshot_is_put_in_place_of_all_files": "merges",
    }.items()
}
BROKEN: Mapping[type[Suite], Broken] = {
    AgentConformance: AGENTS,
    EnvironmentConformance: ENVIRONMENTS,
    GradingConformance: GRADERS,
    RewardConformance: REWARDS,
    SandboxConformance: SANDBOXES,
    SessionConformance: SESSIONS,
    SinkConformance: SINKS,
    ToolFormatConformance: FORMATS,
}
