"""What a solution raises reaches its tests with its own class, its words, its arguments and its fields."""

from __future__ import annotations

import builtins

import pytest

from agentgym.sandbox import AssertCase, GradeRequest, RunStatus, SandboxBackend, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEERING = ("GeneratorExit", "StopAsyncIteration", "StopIteration")
ALL = sorted(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__name__ == name and name not in STEERING
)
ARGUMENTS = {
    "UnicodeDecodeError": "'utf-8', b'a\\xff', 1, 2, 'bad'",
    "UnicodeEncodeError": "'ascii', '\\xe9', 0, 1, 'bad'",
    "UnicodeTranslateError": "'\\xe9', 0, 1, 'bad'",
    "ExceptionGroup": "'two', [ValueError(1), ExceptionGroup('inner', [KeyError('k')])]",
    "BaseExceptionGroup": "'two', [ValueError(1), SystemExit(3)]",
}
MORE = [
    "KeyError('k' * 600)", "KeyError((1, 'k'))", "ValueError()", "ValueError(1, [2])", "ValueError('m' * 600)",
    "OSError(2, 'gone', 'file.txt')", "FileNotFoundError(2, 'gone', 'a', None, 'b')", "OSError(13, 'no')",
    "ImportError('no', name='n', path='p')", "NameError('no', name='n')", "SystemExit(3)", "SystemExit()",
    "SyntaxError('bad', ('file', 3, 1, 'text'))", "UnicodeEncodeError('ascii', '\\ud83d', 0, 1, 'bad')",
    "json.JSONDecodeError('bad', '{', 1)", "decimal.InvalidOperation('bad')", "subprocess.CalledProcessError(3, 'ls')",
]  # fmt: skip
TABLE = f"""
import decimal, json, subprocess
ERRORS = [{", ".join([*(f"{name}({ARGUMENTS.get(name, repr('said'))})" for name in ALL), *MORE])}]
"""
NUM_ERRORS = len(ALL) + len(MORE)
FIELDS = ("errno", "strerror", "filename", "filename2", "name", "path", "msg", "doc", "pos", "lineno", "text", "code",
          "encoding", "object", "start", "end", "reason", "returncode", "cmd", "message")  # fmt: skip
PRELUDE = f"""{TABLE}
def told(error):
    own = (BaseException.__str__ if type(error) is json.JSONDecodeError else type(error).__str__)(error)
    children = [told(child) for child in getattr(error, "exceptions", ())]
    return own, str(error), children or error.args, [getattr(error, name, None) for name in {FIELDS}]
def raised(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return error
"""
SOLUTION = f"""{TABLE}
def f(number):
    raise ERRORS[number]
"""


async def judged(backend: SandboxBackend, code: str, *tests: str, prelude: str = "") -> Verdict:
    cases = [AssertCase(source=test) for test in tests]
    return await backend.grade(GradeRequest(code=code, entry="f", cases=cases, prelude=prelude))


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "bubblewrap", "unsafe_subprocess"])
def python(request: pytest.FixtureRequest) -> SandboxBackend:
    """Each backend with full Python."""
    return request.getfixturevalue(request.param)


async def test_every_builtin_exception_reaches_the_tests_as_itself(python: SandboxBackend) -> None:
    test = "error, meant = raised(f, {0}), ERRORS[{0}]\nassert isinstance(error, type(meant)), type(error)\n"
    test += "assert told(error) == told(meant), told(error)"
    verdict = await judged(python, SOLUTION, *map(test.format, range(NUM_ERRORS)), prelude=PRELUDE)
    assert verdict.status is RunStatus.OK
    assert [f"{n}: {result.error}" for n, result in enumerate(verdict.results) if not result.passed] == []


@pytest.mark.parametrize("name", [*ALL, *STEERING])
async def test_monty_hands_a_test_the_class_that_was_raised_or_refuses(monty: SandboxBackend, name: str) -> None:
    code = f"def f():\n    raise {name}({ARGUMENTS.get(name, repr('said'))})\n"
    kind = "RuntimeError" if name in STEERING else name
    verdict = await judged(monty, code, f"try:\n    f()\nexcept {kind} as error:\n    assert 'said' in str(error)")
    assert verdict.passed or verdict.status is RunStatus.UNSUPPORTED


OWN = """
class Bad(UnicodeDecodeError):
    def __init__(self, why): self.why = why
    def __str__(self): return 'bad ' + self.why
class Many(BaseExceptionGroup):
    def __new__(cls, errors):
        self = super().__new__(cls, "many", errors)
        self.errors = len(errors)
        return self
class Stop(BaseException): pass
class Missing(OSError):
    def __init__(self, path): super().__init__(2, 'no', path)
class Other: pass
def f(which):
    if which == 'decode': return b'\\xff'.decode()
    if which == 'json':
        import json
        return json.loads('{')
    if which == 'open': open('/missing/file')
    if which == 'key': return {}[Other]
    raise {'bad': Bad, 'many': Many, 'stop': Stop, 'missing': Missing}[which](ERRORS.get(which, 'why'))
ERRORS = {'many': [ValueError(1), Bad('x')]}
"""


@pytest.mark.parametrize(
    "test",
    [
        "except Bad as e: assert isinstance(e, UnicodeError) and str(e) == 'bad why' and e.why == 'why'",
        "except Many as e: assert (e.errors, str(e.exceptions[1]), type(e.exceptions[0])) == (2, 'bad x', ValueError)",
        "except* ValueError as many: assert len(many.exceptions) == 2",
        "except Stop as e: assert not isinstance(e, Exception) and e.args == ('why',)",
        "except Missing as e: assert (e.errno, e.filename) == (2, 'why') and 'why' in str(e)",
        "except UnicodeDecodeError as e: assert e.object == b'\\xff' and e.end == 1",
        "except __import__('json').JSONDecodeError as e: assert e.pos == 1 and 'property name' in str(e)",
        "except FileNotFoundError as e: assert e.filename == '/missing/file' and str(e).startswith('[Errno 2]')",
        "except KeyError as e: assert 'Other' in str(e)",
    ],
)
async def test_what_a_solution_derives_or_meets_is_caught_by_its_class(python: SandboxBackend, test: str) -> None:
    which = {
        "Bad": "bad", "Many": "many", "ValueError": "many", "Stop": "stop", "Missing": "missing", "KeyError": "key",
        "UnicodeDecodeError": "decode", "FileNotFoundError": "open",
    }.get(test.split()[1], "json")  # fmt: skip
    code = f"import json\ntry:\n    f({which!r})\n{test}\nelse: assert False"
    verdict = await judged(python, OWN, code, code.replace("Bad as e", "UnicodeDecodeError as e"))
    assert [result.error for result in verdict.results] == ["", ""]


async def test_a_solutions_context_manager_meets_what_a_test_raises(python: SandboxBackend) -> None:
    code = "class f:\n    def __enter__(self): return self\n    def __exit__(self, kind, error, trace):\n"
    code += "        assert isinstance(error, kind), kind\n        return kind is not ValueError\n"
    tests = [
        f"with f(): raise {name}({ARGUMENTS.get(name, repr('said'))})"
        for name in ("ExceptionGroup", "UnicodeDecodeError", "KeyError", "OSError")
    ]
    verdict = await judged(python, code, *tests)
    assert [result.error for result in verdict.results] == [""] * 4


async def test_an_uncaught_group_is_named_with_its_words(python: SandboxBackend) -> None:
    verdict = await judged(python, SOLUTION, f"f({ALL.index('ExceptionGroup')})")
    assert verdict.results[0].error == "raised ExceptionGroup: two (2 sub-exceptions)"
