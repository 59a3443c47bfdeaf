"""What the host makes of any answer: a verdict with a result for every case, and a pass for equal values only."""

from __future__ import annotations

import json
from random import Random

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import AssertCase, CallCase, Case, GradeRequest, RunStatus, Verdict
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host.grading import grade_blobs, verdict_of
from agentgym_sandboxes.host.running import result_of
from fuzz import mutation
from fuzz.plain import equal, near_miss, random_value
from fuzz.running import Target

REASONS = [None, None, None, None, "signal", "timeout", "oom", "output_limit", "cancelled"]
MAX_ERROR_CHARS = 600


def random_cases(random: Random, kinds: str) -> list[Case]:
    cases: list[Case] = []
    for _ in range(random.randint(1, 5)):
        if random.choice(kinds) == "a":
            cases.append(AssertCase(source="assert f(1) == 2"))
            continue
        left = (random_value(random),) if random.random() < 0.2 else None
        cases.append(
            CallCase(args=(1,), expected=random_value(random), expected_args=left, as_list=random.random() < 0.2)
        )
    return cases


def true_answers(random: Random, cases: list[Case]) -> list[object]:
    """What a solution's process would write: right, nearly right, or raised."""
    lines: list[object] = [["ok"]]
    for case in cases:
        if not isinstance(case, CallCase):
            continue
        roll = random.random()
        if roll < 0.1:
            lines.append(["x", "ValueError", "no", 3])
        elif roll < 0.2:
            lines.append(["n", "generator"])
        else:
            value = case.expected if roll < 0.7 else near_miss(random, case.expected)
            line: list[object] = ["r", values.encode(value)]
            if case.expected_args is not None:
                left = case.expected_args if random.random() < 0.7 else near_miss(random, case.expected_args)
                line.append(["r", values.encode(left)])
            lines.append(line)
    return lines


def spoiled_lines(random: Random, lines: list[object]) -> bytes:
    """Lines as a hostile process would write them: changed in form or in bytes, repeated, cut."""
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        place = random.randrange(len(lines))
        roll = random.random()
        if roll < 0.6:
            lines = [*lines[:place], mutation.spoil_tree(random, lines[place]), *lines[place + 1 :]]
        elif roll < 0.8:
            lines = [*lines[:place], *lines[place + 1 :]] or [["ok"]]
        else:
            lines = [*lines[:place], lines[place], *lines[place:]]
    data = b"".join(mutation.as_text(line) + b"\n" for line in lines)
    roll = random.random()
    if roll < 0.3:
        data = mutation.spoil(random, data)
    elif roll < 0.34:
        data = b'["ok"]\n' + _extreme(random) + b"\n"
    return data


def _extreme(random: Random) -> bytes:
    n = random.choice((100, 400, 900, 20_000))
    return random.choice([
        b'["r",' * n + b"1" + b"]" * n, b'["r",1,' * n + b'["r",1]' + b"]" * n, b"[" * n,
        b'["n",' * n + b"1" + b"]" * n,
        b'["r",' + b"9" * n + b"]", b'["r",["i","0x' + b"f" * 10 * n + b'"]]',
        b'["r","' + b"x" * 100 * n + b'"]',
        b'["x","' + b"E" * n + b'","' + b"\\n" * n + b'",1]', b'["x","\\ud800","\\udfff\\u0000",1]',
        b'["n","\\ud800\\n"]', b"[]\n" * n,
        b'["r",["decimal","1e' + b"9" * n + b'"]]',
        b'["r",["fraction",' + b"7" * 4000 + b"," + b"3" * 4000 + b"]]", b'["x","a",1e999,1]',
        b'["r",["range",0,1,0]]', b'["r",["range",0,["i","0x' + b"f" * n + b'"],1]]',
        b'["x","E","m",' + b"9" * 4000 + b"]",
    ])  # fmt: skip


def answer_frame(random: Random, answers: bytes, verdict: bytes | None) -> Frame:
    reason = random.choice(REASONS)
    exits = {"serve": random.choice((0, 0, 9, 256, 11))}
    names, blobs = ["answers"], [answers]
    if verdict is not None:
        names, blobs, exits = (
            [*names, "verdict"],
            [*blobs, verdict],
            {**exits, "judge": random.choice((0, 0, 9, 256))},
        )
    return Frame({"id": 1, "reason": reason, "exits": exits, "truncated": False, "cpu_s": 0.1,
    "memory_mib": 9.0,
                  "wall_s": 0.2, "names": names, "sizes": [len(b) for b in blobs]}, blobs)  # fmt: skip


def check_form(verdict: Verdict, cases: list[Case]) -> None:
    assert len(verdict.results) == len(cases)
    for text in (verdict.error, *(result.error for result in verdict.results)):
        assert len(text) <= MAX_ERROR_CHARS, len(text)
        assert "\n" not in text, text
        text.encode()  # it goes to a model, and into files
    assert all(bool(result.error) != result.passed for result in verdict.results)


def call_answers(random: Random) -> None:
    """The solution's lines are anything: a case passes only when the value on its line equals what is expected."""
    cases = random_cases(random, "c")
    request = GradeRequest(code="", entry="f", cases=tuple(cases))
    true = true_answers(random, cases)
    data = spoiled_lines(random, true)
    verdict = verdict_of(answer_frame(random, data, None), request)
    check_form(verdict, cases)
    lines = data.split(b"\n")
    for case, result, line in zip(cases, verdict.results, [*lines[1:], *[b""] * len(cases)], strict=False):
        assert isinstance(case, CallCase)
        if result.passed:
            told = json.loads(line)
            assert told[0] == "r" and json.loads(lines[0]) == ["ok"]
            assert equal(_value(told[1]), case.expected), (told, case)
            if case.expected_args is not None:
                assert equal(_value(told[2][1]), case.expected_args), (told, case)
    if data == b"".join(mutation.as_text(line) + b"\n" for line in true):
        expected = [line[0] == "r" and _passes(case, line) for case, line in zip(cases, true[1:], strict=True)]
        assert [result.passed for result in verdict.results] == expected


def _value(tree: values.Tree) -> object:
    """The value of a tree, without what does not count: the factory of a defaultdict and the room of a deque."""

    def plain(tree: values.Tree) -> values.Tree:
        if not isinstance(tree, list):
            return tree
        neutral: dict[object, list[values.Tree]] = {"default": ["default", ""], "deque": ["deque", None]}
        start = neutral.get(tree[0]) if tree and isinstance(tree[0], str) else None
        return (start or tree[:1]) + [plain(item) for item in tree[2 if start else 1 :]]

    return values.decode(plain(tree))


def _passes(case: Case, line: object) -> bool:
    assert isinstance(case, CallCase) and isinstance(line, list)
    if not equal(values.decode(line[1]), case.expected):
        return False
    return case.expected_args is None or equal(values.decode(line[2][1]), case.expected_args)


def assert_answers(random: Random) -> None:
    """The solution's lines are anything, the test side's are its own: what failed there does not pass."""
    cases = random_cases(random, "aac")
    request = GradeRequest(code="", entry="f", cases=tuple(cases))
    said: list[object] = [["ok"]]
    for case in cases:
        if isinstance(case, AssertCase):
            said.append(random.choice((["pass"], ["x", "AssertionError", "", 1], ["x", "ValueError", "é\n" * 300, 1])))
    said = said[: random.randint(0, len(said))] if random.random() < 0.2 else said
    spoken = b"".join(mutation.as_text(line) + b"\n" for line in said)
    data = spoiled_lines(random, true_answers(random, cases))
    try:
        verdict = verdict_of(answer_frame(random, data, spoken), request)
    except (InfraError, UserError):
        return
    check_form(verdict, cases)
    told = iter(said[1:])
    for case, result in zip(cases, verdict.results, strict=True):
        if isinstance(case, AssertCase):
            assert next(told, None) == ["pass"] or not result.passed


def program_answers(random: Random) -> None:
    """Whatever a program wrote and however it ended: a result with a status, and text that can be written."""
    blobs = [mutation.spoil(random, b'["memory"]\n'), random.randbytes(50), mutation.spoil(random, "é😀".encode() * 20)]
    exits = {"program": random.choice((0, 256, 9, 139, 65280))} if random.random() < 0.9 else {}
    header = {"id": 1, "reason": random.choice([*REASONS, "disk_limit"]), "exits": exits,
              "truncated": random.random() < 0.5,
              "cpu_s": 0.1, "memory_mib": 3.5, "wall_s": 0.2,
              "names": ["notes", "stdout", "stderr"]}  # fmt: skip
    result = result_of(Frame(header, blobs))
    assert isinstance(result.status, RunStatus)
    (result.stdout + result.stderr).encode()
    assert result.status is not RunStatus.OK or result.exit_code == 0


def questions(random: Random) -> None:
    """What goes into a container holds no expected value."""
    secret = f"secret{random.getrandbits(64)}"
    cases = (CallCase(args=(random_value(random),), expected=[secret], expected_args=({"k": secret},)),)
    request = GradeRequest(code="", entry="f", cases=cases)
    assert all(secret.encode() not in blob for blob in grade_blobs(request))


TARGETS = [
    Target(name="verdict-calls", case=call_answers),
    Target(name="verdict-asserts", case=assert_answers),
    Target(name="program-results", case=program_answers, weight=0.5),
    Target(name="questions", case=questions, weight=0.3),
]
