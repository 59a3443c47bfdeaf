"""An image with packages of ours: calls and sessions import them, or find them imported, and can't spoil them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from pool_fakes import until

from agentgym.errors import InfraError
from agentgym.sandbox import AssertCase, CallCase, GradeRequest, RunStatus, SandboxUnavailable
from agentgym_sandboxes.agent.preload import PreloadFailed, preload
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image import reference_of
from tests.sandboxes.wheel_files import wheel

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACKAGES = ("tiny-thing==1.0",)
NUMPY = ("numpy>=2.3.1,<2.3.2",)  # written so, no one else has this image, which is removed again
PRELOADED = ("numpy", "numpy.random")  # it imports the second only when that is used
FILES = {
    "tiny/__init__.py": "SEEN = []\ndef double(x):\n    return 2 * x\n",
    "tiny_fails.py": "raise RuntimeError('not on a Saturday')\n",
    "tiny_exits.py": "import sys\nsys.exit(3)\n",
    "tiny_dies.py": "import os\nos._exit(3)\n",
    "tiny_hangs.py": "import threading\nthreading.Event().wait()\n",
    "tiny_threads.py": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
}


def config(packages: tuple[str, ...], *preloaded: str) -> DockerConfig:
    return DockerConfig(packages=packages, preload=preloaded, pool_size=1, spares=0, spare_sessions=0)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiny_image(engine: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[str]]:
    """Built from a folder, without an index; what the build said."""
    folder = tmp_path_factory.mktemp("index")
    wheel(folder, "tiny-thing", "1.0", FILES)
    said: list[str] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PIP_NO_INDEX", "1")
            patch.setenv("PIP_FIND_LINKS", str(folder))
            await DockerBackend(config(PACKAGES)).build(said.append)
        yield said
    finally:
        remove_image(PACKAGES)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def numpy_image(engine: str) -> AsyncIterator[None]:
    try:
        try:
            await DockerBackend(config(NUMPY, *PRELOADED)).build(print)
        except InfraError as error:
            if os.environ.get("AGENTGYM_REQUIRE_DOCKER") == "1" or "can't reach the index" not in str(error):
                raise
            pytest.skip(str(error))
        yield
    finally:
        remove_image(NUMPY)


def remove_image(packages: tuple[str, ...]) -> None:
    name = reference_of(DockerConfig(packages=packages).requirements)
    subprocess.run(["docker", "rmi", name], check=False, capture_output=True, timeout=60)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiny(tiny_image: list[str]) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(config(PACKAGES, "tiny")) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=[(), PRELOADED], ids=["imported", "preloaded"])
async def with_numpy(numpy_image: None, request: pytest.FixtureRequest) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(config(NUMPY, *request.param)) as backend:
        yield backend


def containers_of(backend: DockerBackend) -> str:
    command = ["docker", "ps", "-aq", "--filter", f"label=agentgym.owner={backend._owner}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


async def until_no_container_of(backend: DockerBackend) -> None:
    """An engine still lists for a moment what it is removing."""
    await until(lambda: not containers_of(backend))


async def printed(backend: DockerBackend, code: str) -> str:
    result = await backend.run(code)
    assert result.status is RunStatus.OK, result.stderr
    return result.stdout.strip()


async def test_the_build_says_what_it_did(tiny_image: list[str]) -> None:
    said = "\n".join(tiny_image)
    assert "fetching tiny-thing==1.0 for Python 3." in said and "to the image: tiny-thing==1.0" in said
    assert "use them with sandbox.options.packages: [tiny-thing==1.0]" in said
    assert "with tiny-thing==1.0" in (await DockerBackend(config(PACKAGES)).probe()).detail


async def test_programs_solutions_tests_and_sessions_import_a_package(tiny: DockerBackend) -> None:
    assert await printed(tiny, "import tiny; print(tiny.double(4))") == "8"
    cases = (CallCase(args=(2,), expected=4), AssertCase(source="import tiny\nassert f(3) == tiny.double(3)"))
    verdict = await tiny.grade(GradeRequest(code="from tiny import double as f", entry="f", cases=cases))
    assert verdict.passed, verdict
    async with tiny.session() as session:
        assert (await session.run("import tiny; tiny.double(5)")).stdout == "10\n"
        assert (await session.exec("python3 -c 'import tiny; print(tiny.double(6))'")).stdout == "12\n"
        assert (await session.exec("echo $OMP_NUM_THREADS")).stdout == "1\n"


async def test_a_preloaded_module_is_there_before_a_call_imports_it(tiny: DockerBackend) -> None:
    look = "import sys; print('tiny' in sys.modules)"
    assert await printed(tiny, look) == "True"
    async with tiny.session() as session:
        assert (await session.run(look)).stdout == "True\n"
    async with DockerBackend(config(PACKAGES)) as plain:
        assert await printed(plain, look) == "False"


async def test_what_a_call_does_to_a_preloaded_module_is_its_own(tiny: DockerBackend) -> None:
    spoil = """
import os, sys, tiny
tiny.SEEN.append("secret")
tiny.double = lambda x: "forged"
sys.path.insert(0, "/tmp")
sys.modules["json"] = None
open("/tmp/tiny.py", "w").write("def double(x): return 'forged'")
for place in (os.path.dirname(tiny.__file__), os.path.dirname(os.path.dirname(tiny.__file__))):
    try:
        open(place + "/planted.py", "w")
    except OSError as error:
        print(type(error).__name__)
"""
    said = await printed(tiny, spoil)
    assert len(said.split()) == 2, said
    look = "import json, sys, tiny; print(tiny.SEEN, tiny.double(2), '/tmp' in sys.path, '' in sys.path)"
    assert await printed(tiny, look) == "[] 4 False False"
    verdict = await tiny.grade(
        GradeRequest(
            code="import tiny\ntiny.double = lambda x: 0\ndef f(): return 0",
            entry="f",
            cases=(AssertCase(source="import tiny\nassert f() == tiny.double(1)"),),
        )
    )
    assert not verdict.passed


async def test_packages_were_compiled_by_the_images_python(tiny: DockerBackend) -> None:
    """Else each import would compile them again: nothing can be written there."""
    assert await printed(tiny, "import os, tiny; print(os.path.exists(tiny.__cached__))") == "True"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("no_such_module", "no_such_module can't be imported: ModuleNotFoundError: No module named 'no_such"),
        ("tiny_fails", "tiny_fails can't be imported: RuntimeError: not on a Saturday"),
        ("tiny_exits", "tiny_exits can't be imported: SystemExit: 3"),
        ("tiny_dies", "Python ended while it imported tiny, tiny_dies"),
        ("tiny_threads", "tiny_threads starts threads when it is imported, and a fork would lose them"),
    ],
)
async def test_a_module_that_can_not_be_preloaded_fails_the_start(
    tiny_image: list[str], module: str, said: str
) -> None:
    backend = DockerBackend(config(PACKAGES, "tiny", module))
    try:
        with pytest.raises(SandboxUnavailable) as caught:
            await backend.start()
    finally:
        await backend.close()
    assert said in str(caught.value)
    assert "sandbox.options.preload is ['tiny'" in str(caught.value)
    assert ("sandbox.options.packages" in str(caught.value)) == ("can't be imported" in said)
    await until_no_container_of(backend)


@pytest.mark.hostile
async def test_a_module_whose_import_hangs_is_named_at_the_deadline(tiny_image: list[str]) -> None:
    backend = DockerBackend(replace(config(PACKAGES, "tiny_hangs"), start_timeout_s=1.0))
    try:
        with pytest.raises(SandboxUnavailable, match="a container, which is to import tiny_hangs, was not ready"):
            await backend.start()
    finally:
        await backend.close()
    await until_no_container_of(backend)


async def test_packages_that_were_not_built_are_told_with_the_command(engine: str) -> None:
    with pytest.raises(SandboxUnavailable, match="`agentgym sandbox build --packages tiny-absent==1`"):
        await DockerBackend(DockerConfig(packages=("tiny-absent==1",))).probe()


@pytest.mark.slow
async def test_numpy_works_within_the_default_limits(with_numpy: DockerBackend) -> None:
    code = "import numpy as np\ndef f(n):\n    a = np.ones((n, n))\n    return float((a @ a).sum())\n"
    assert await printed(with_numpy, f"{code}print(f(1000))") == "1000000000.0"
    cases = (
        CallCase(args=(10,), expected=1000.0),
        AssertCase(source="import numpy as np\nassert f(10) == float(np.full(10, 100.0).sum())"),
    )
    verdict = await with_numpy.grade(GradeRequest(code=code, entry="f", cases=cases))
    assert verdict.passed, verdict
    async with with_numpy.session() as session:
        assert (await session.run(f"{code}f(10)")).stdout == "1000.0\n"
        result = await session.exec("python3 -c 'import numpy as np; print(np.linalg.det(np.eye(50)))'")
        assert result.stdout == "1.0\n", result.stderr
    product = "numpy.ones((500, 500)) @ numpy.ones((500, 500))"
    threads = f"import numpy, os; {product}; print(len(os.listdir('/proc/self/task')))"
    assert await printed(with_numpy, threads) == "1"


@pytest.mark.slow
async def test_what_is_preloaded_takes_no_memory_from_a_call(with_numpy: DockerBackend) -> None:
    """The limit is 512 MiB, and numpy takes more than 100 MiB of address space."""
    fits, too_much = "print(len(bytearray(450 << 20)))", "print(len(bytearray(600 << 20)))"
    assert await printed(with_numpy, fits) == str(450 << 20)
    assert (await with_numpy.run(too_much)).status is RunStatus.OOM
    async with with_numpy.session() as session:
        assert (await session.run(fits)).status is RunStatus.OK
        assert (await session.run(too_much)).status is RunStatus.OOM


@pytest.mark.slow
async def test_calls_do_not_draw_the_same_random_numbers(with_numpy: DockerBackend) -> None:
    """A solution could else know what its tests draw."""
    draws = [
        await printed(with_numpy, "import numpy as np, random; print(np.random.rand(), random.random())")
        for _ in range(3)
    ]
    numbers = [number for line in draws for number in line.split()]
    assert len(set(numbers)) == 6
    peek = "import numpy as np\ndef f():\n    return float(np.random.rand())\n"
    case = AssertCase(source="import numpy as np\nassert f() != float(np.random.rand())")
    verdict = await with_numpy.grade(GradeRequest(code=peek, entry="f", cases=(case,)))
    assert verdict.passed, verdict


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path


async def test_preloading_says_which_module_and_why(modules: Path) -> None:
    (modules / "preload_breaks.py").write_text("1 / 0\n")
    with pytest.raises(PreloadFailed, match="preload_breaks can't be imported: ZeroDivisionError"):
        preload(["json", "preload_breaks"])
