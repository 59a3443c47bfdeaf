"""Where tasks come from: made procedurally, or read from MBPP- and HumanEval-shaped data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, cast, get_args

from agentgym.errors import UserError, nearest
from agentgym.types import Message, SandboxSpec, Split, Task
from agentgym_envs.code_exec.datasets_source import TEST_SHARE, DatasetSource, Grading
from agentgym_envs.code_exec.problems import Problem, case_text
from agentgym_envs.code_exec.procedural import DEFAULT_WEIGHTS, MAX_DIFFICULTY, Pipeline, pipelines

_SANDBOX = SandboxSpec(allow_interpreters=("monty",), grades=True)


class TaskSource(Protocol):
    """Gives the environment its tasks; `train` may be endless, `test` ends."""

    @property
    def notes(self) -> Mapping[Split, str]:
        """Of each split, once its tasks were drawn: see `Environment.split_note`."""
        ...

    def tasks(self, split: Split, seed: int) -> Iterator[Task]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProceduralSource:
    """max_difficulty: the longest pipeline. weights: share of each difficulty. test_tasks: how many tests."""

    max_difficulty: int = MAX_DIFFICULTY
    weights: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    visible: int = 1
    test_tasks: int = 512
    notes: Mapping[Split, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.max_difficulty <= MAX_DIFFICULTY:
            raise UserError(f"code_exec: max_difficulty is {self.max_difficulty}; give 1 to {MAX_DIFFICULTY}")
        if self.visible < 1 or self.test_tasks < 1:
            raise UserError(f"code_exec: visible {self.visible} and test_tasks {self.test_tasks} must be at least 1")
        if not self.shares:
            raise UserError(
                f"code_exec: weights {dict(self.weights)} leave no task up to difficulty {self.max_difficulty}; "
                "give a share above 0, for example {2: 1.0}"
            )

    @property
    def shares(self) -> dict[int, float]:
        return {d: share for d, share in self.weights.items() if d <= self.max_difficulty and share > 0}

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        endless = pipelines(split, seed, self.shares, num_visible=self.visible)
        drawn = endless if split == "train" else islice(endless, self.test_tasks)
        for index, made in enumerate(drawn):
            yield pipeline_task(made, task_id=f"procedural/{split}/{seed}/{index}")


def pipeline_task(made: Pipeline, *, task_id: str) -> Task:
    """The task that asks for a pipeline."""
    problem = made.problem()
    return Task(
        task_id=task_id,
        prompt=(pipeline_prompt(made.request, problem),),
        answer=problem.to_json(),
        sandbox=_SANDBOX,
        split=made.split,
        difficulty=made.difficulty,
    )


def pipeline_prompt(request: str, problem: Problem) -> Message:
    examples = "\n".join(case_text(problem.entry, case) for case in problem.visible)
    return {"role": "user", "content": f"Write {problem.entry}(xs): {request}.\n{examples}"}


def make_source(name: str, options: Mapping[str, object]) -> TaskSource:
    """Raises UserError for an unknown source or option."""
    if name not in _BUILDERS:
        raise UserError(f"code_exec has no task source {name!r}.{nearest(name, _BUILDERS)}")
    build, allowed = _BUILDERS[name]
    for option in options:
        if option not in allowed:
            raise UserError(f"code_exec, source {name}: no option {option!r}.{nearest(option, allowed)}")
    return build(options)


def _procedural(options: Mapping[str, object]) -> TaskSource:
    return ProceduralSource(
        max_difficulty=_whole(options, "max_difficulty", MAX_DIFFICULTY),
        weights=_weights(options.get("weights", DEFAULT_WEIGHTS)),
        visible=_whole(options, "visible", 1),
        test_tasks=_whole(options, "test_tasks", 512),
    )


def _local(kind: str) -> Callable[[Mapping[str, object]], TaskSource]:
    def build(options: Mapping[str, object]) -> TaskSource:
        path = _word(options, "path", "")
        if not path:
            raise UserError(f"code_exec: source {kind} needs `path`, the file to read")
        return _dataset(options, reader=kind, path=path)

    return build


def _hub(options: Mapping[str, object]) -> TaskSource:
    dataset = _word(options, "dataset", "")
    if not dataset:
        raise UserError("code_exec: source hub needs `dataset`, for example openai/openai_humaneval")
    return _dataset(options, reader="hub", path=dataset, subset=_word(options, "subset", ""))


def _dataset(options: Mapping[str, object], *, reader: str, path: str, subset: str = "") -> DatasetSource:
    grading, share, ids = (options.get(key) for key in ("grading", "test_share", "test_ids"))
    if grading not in (None, *get_args(Grading)):
        raise UserError(f"code_exec: no grading {grading!r}.{nearest(str(grading), get_args(Grading))}")
    if isinstance(share, bool) or not isinstance(share, int | float | None):
        raise UserError(f"code_exec: test_share is a number, not {share!r}")
    if ids is not None and not (isinstance(ids, Sequence) and len(ids) == 2 and all(type(one) is int for one in ids)):
        raise UserError(f"code_exec: test_ids are the first and last task_id of the test split, not {ids!r}")
    return DatasetSource(
        reader=reader,
        path=path,
        subset=subset,
        visible=_whole(options, "visible", 1),
        grading=cast(Grading, grading or "all"),
        test_share=TEST_SHARE if share is None else share,
        test_ids=None if ids is None else (ids[0], ids[1]),
    )


_OF_ROWS = frozenset({"visible", "grading", "test_share", "test_ids"})

_BUILDERS: Mapping[str, tuple[Callable[[Mapping[str, object]], TaskSource], frozenset[str]]] = {
    "procedural": (_procedural, frozenset({"max_difficulty", "weights", "visible", "test_tasks"})),
    "jsonl": (_local("json"), _OF_ROWS | {"path"}),
    "json": (_local("json"), _OF_ROWS | {"path"}),
    "parquet": (_local("parquet"), _OF_ROWS | {"path"}),
    "hub": (_hub, _OF_ROWS | {"dataset", "subset"}),
}


def _whole(options: Mapping[str, object], key: str, default: int) -> int:
    value = options.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"code_exec: {key} is a whole number, not {value!r}")
    return value


def _word(options: Mapping[str, object], key: str, default: str) -> str:
    value = options.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"code_exec: {key} is a string, not {value!r}")
    return value


def _weights(value: object) -> dict[int, float]:
    """Difficulty to share; keys may be strings, as JSON has them."""
    if not isinstance(value, Mapping):
        raise UserError(f"code_exec: weights map a difficulty to its share, for example {{2: 1.0}}; not {value!r}")
    weights: dict[int, float] = {}
    for key, share in value.items():
        if not str(key).isdecimal() or not 1 <= int(str(key)) <= MAX_DIFFICULTY:
            raise UserError(f"code_exec: weights: no difficulty {key!r}; there is 1 to {MAX_DIFFICULTY}")
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1e9:
            raise UserError(f"code_exec: weights: the share of {key} is a number of at least 0, not {share!r}")
        weights[int(str(key))] = float(share)
    return weights
