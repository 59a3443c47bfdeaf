"""Packages for our image: how they are named, fetched and added, and what a person is told when that fails."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image import RECIPE, ImageChoice, provide_image, reference_of
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.layer import PackageLayer, build_command
from agentgym_sandboxes.docker.profile import PACKAGES_LABEL, container_settings
from agentgym_sandboxes.docker.requirements import read_requirements
from agentgym_sandboxes.docker.wheels import ImagePython, explained, pip_command
from tests.sandboxes.wheel_files import wheel

BOOKWORM = ImagePython(
    version="3.11.2", abi="cp311", machine="x86_64", libc="glibc 2.36", folder="/usr/local/lib/x/dist-packages"
)


def reference(*packages: str) -> str:
    return reference_of(read_requirements(packages))


def test_the_image_is_the_same_for_the_same_packages_in_whatever_order_and_spelling() -> None:
    ours = reference("numpy==2.3.1", "scikit-learn [b,a]>=1,<2")
    assert ours == reference("Scikit_Learn[a,b] <2, >= 1", " NumPy == 2.3.1 ")
    others = {
        reference("numpy==2.3.1"), reference("numpy==2.3.2", "scikit-learn[a,b]>=1,<2"),
        reference("numpy==2.3.1", "scikit-learn[a]>=1,<2"), reference("numpy", "scikit-learn"), RECIPE.reference,
    }  # fmt: skip
    assert len(others) == 5 and ours not in others
    assert reference() == RECIPE.reference


@pytest.mark.parametrize(
    "text",
    ["", "-r requirements.txt", "--index-url=http://x", "./here", "/root/x.whl", "git+https://x/y", "x @ file:///x",
     "numpy==", "numpy=2", "numpy 2", "numpy==1;python_version>'3'", "numpy\n--pre", "numpy==1 --pre", "[a]"],
)  # fmt: skip
def test_what_is_no_name_with_versions_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="give names with versions, as numpy"):
        PluginRegistry.discover().sandbox("docker")({"packages": [text]})


async def test_an_image_of_ones_own_is_not_built() -> None:
    with pytest.raises(UserError, match="an image of your own; what is built here is ours"):
        await DockerBackend(DockerConfig(image="mine")).build(print)


def test_a_backend_serves_tasks_for_the_image_with_its_packages() -> None:
    backend = DockerBackend(DockerConfig(packages=("numpy==2.3.1",)))
    assert backend.supports(SandboxSpec(image=reference("numpy==2.3.1")))
    assert not backend.supports(SandboxSpec(image=RECIPE.reference))


def test_a_container_gets_the_modules_to_preload_and_one_thread_for_each_library() -> None:
    settings = container_settings(DockerConfig(preload=("numpy", "scipy.stats")), "image", "owner")
    assert settings["Cmd"][-2:] == ["numpy", "scipy.stats"]  # type: ignore[index]
    assert {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"} <= set(settings["Env"])  # type: ignore[arg-type]


class FakeEngine:
    """Has images by name; builds from what it is given and keeps that."""

    def __init__(self, url: str, *references: str) -> None:
        self.url = url
        self.images = {name: Image(image_id="sha256:base", layers=("base",), digests=()) for name in references}
        self.context = b""
        self.settings: dict[str, Any] = {}

    async def image(self, reference: str) -> Image | None:
        return self.images.get(reference)

    async def call_long(self, what: str, function: Callable[[Any], object], timeout_s: float) -> None:
        function(self)

    def build(self, *, fileobj: io.BufferedReader, **settings: Any) -> Iterator[dict[str, str]]:
        self.context, self.settings = fileobj.read(), settings
        yield {"stream": "Step 1/4"}
        if b"broken" in self.context:
            yield {"error": "no space left on device"}
        self.images[settings["tag"]] = Image(image_id="sha256:new", layers=("base", "site"), digests=())

    async def save(self, reference: str, archive: Path, timeout_s: float) -> None:
        archive.write_text(reference)

    async def load(self, archive: Path, timeout_s: float) -> None:
        self.images[archive.read_text()] = Image(image_id="sha256:new", layers=("base", "site"), digests=())


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip knows no other packages than what lies in this folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def layer_of(*packages: str, python: ImagePython = BOOKWORM) -> PackageLayer:
    async def ask(engine: object, image: str) -> ImagePython:
        assert image == RECIPE.reference
        return python

    return PackageLayer(requirements=read_requirements(packages), ask=ask)


async def provided(engines: list[FakeEngine], layer: PackageLayer) -> list[str]:
    said: list[str] = []
    await provide_image(engines, "http://mirror", None, said.append, layer)  # type: ignore[arg-type]
    return said


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
async def test_packages_become_a_layer_on_the_base_readable_to_all_and_go_to_every_engine(local_index: Path) -> None:
    wheel(local_index, "tiny", "1.0", {"tiny/__init__.py": "ANSWER = 42"}, needs=("tiny-inner>=1",))
    wheel(local_index, "tiny-inner", "1.5", {"tiny_inner.py": ""})
    one, two = FakeEngine("one", RECIPE.reference), FakeEngine("two")
    said = await provided([one, two], layer_of("Tiny==1.0"))
    name = reference("tiny==1.0")
    assert name in one.images and name in two.images
    assert one.settings["tag"] == name and one.settings["network_mode"] == "none"
    assert json.loads(one.settings["labels"][PACKAGES_LABEL]) == ["tiny-inner==1.5", "tiny==1.0"]
    with tarfile.open(fileobj=io.BytesIO(one.context)) as archive:
        lines = archive.extractfile("Dockerfile").read().decode().splitlines()  # type: ignore[union-attr]
        assert lines[0] == f"FROM {RECIPE.reference}"
        assert f'COPY ["site", "{BOOKWORM.folder}"]' in lines
        entries = archive.getmembers()
    assert {"site/tiny/__init__.py", "site/tiny_inner.py"} <= {entry.name for entry in entries}
    assert all((entry.uid, entry.gid) == (0, 0) and entry.mode in (0o644, 0o755) for entry in entries)
    assert any("tiny-inner==1.5 tiny==1.0" in line for line in said)
    assert not any("another version" in line for line in said)


async def test_a_build_that_the_engine_ends_is_told(local_index: Path) -> None:
    from docker.errors import APIError

    wheel(local_index, "tiny", "1.0", {"tiny.py": "broken"})
    with pytest.raises(APIError, match="no space left"):  # which an engine turns into an error of ours
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("tiny==1.0"))


async def test_pip_takes_wheels_of_the_image_and_says_when_there_is_none(local_index: Path) -> None:
    files = {"tiny.py": ""}
    wheel(local_index, "tiny", "1.0", files, tags=("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",))
    wheel(local_index, "tiny", "1.1", files, tags=("cp311-cp311-manylinux_2_39_x86_64",))  # a newer glibc
    wheel(local_index, "tiny", "1.2", files, tags=("cp312-cp312-manylinux_2_17_x86_64",))
    wheel(local_index, "other", "1.0", files, tags=("cp312-cp312-manylinux_2_17_x86_64",))
    said = await provided([FakeEngine("one", RECIPE.reference)], layer_of("tiny"))
    assert any("tiny may be another version on another machine" in line and "tiny==1.0" in line for line in said)
    newer = dataclasses.replace(BOOKWORM, version="3.12.1", abi="cp312")
    said = await provided([FakeEngine("one", RECIPE.reference)], layer_of("tiny", python=newer))
    assert any("tiny==1.2" in line for line in said)
    with pytest.raises(UserError, match=r"no version of other has a wheel for cp311.*image of your own"):
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("other"))
    with pytest.raises(UserError, match=r"no wheel of tiny==1\.2 for cp311.*\n?.*from versions: 1\.0"):
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("tiny==1.2"))
    with pytest.raises(UserError, match="no package 'tinny'"):
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("tinny"))


async def test_packages_that_do_not_go_together_are_told(local_index: Path) -> None:
    wheel(local_index, "a", "1", {"a.py": ""}, needs=("c==1",))
    wheel(local_index, "b", "1", {"b.py": ""}, needs=("c==2",))
    for version in ("1", "2"):
        wheel(local_index, "c", version, {"c.py": ""})
    with pytest.raises(UserError, match=r"they do not go together[\s\S]*a 1 depends on c==1"):
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("a", "b"))


async def test_an_index_that_can_not_be_reached_is_no_mistake_of_the_users(
    local_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(InfraError, match=r"can't reach the index.*PIP_INDEX_URL.*PIP_FIND_LINKS") as caught:
        await provided([FakeEngine("one", RECIPE.reference)], layer_of("tiny"))
    assert not isinstance(caught.value, SandboxUnavailable)


def test_where_there_is_no_pip_that_is_told() -> None:
    error = explained("/x/python: No module named pip\n", BOOKWORM, ())
    assert isinstance(error, UserError) and "-m ensurepip" in str(error)


def test_a_long_list_of_versions_is_cut_in_its_middle() -> None:
    versions = ", ".join(f"1.{number}" for number in range(300))
    said = f"ERROR: no version (from versions: {versions})\nERROR: No matching distribution found for x==9\n"
    text = str(explained(said, BOOKWORM, read_requirements(["x==9"])))
    assert "1.0, 1.1" in text and "1.299)" in text and "1.150" not in text and len(text) < 1000


def test_pip_is_asked_for_the_images_python_and_not_ours() -> None:
    command = pip_command(BOOKWORM, read_requirements(["numpy>=2", "sympy"]), Path("/t"))
    platforms = [command[at + 1] for at, word in enumerate(command) if word == "--platform"]
    assert platforms[0] == "manylinux_2_36_x86_64" and "manylinux_2_17_x86_64" in platforms
    assert {"--only-binary=:all:", "--abi=cp311", "--python-version=3.11.2", "--target=/t"} <= set(command)
    assert command[-2:] == ["numpy>=2", "sympy"]
    alpine = dataclasses.replace(BOOKWORM, libc="")
    assert alpine.platforms == ["musllinux_1_2_x86_64", "musllinux_1_1_x86_64", "musllinux_1_0_x86_64"]


def test_an_images_python_is_read() -> None:
    facts = {"version": "3.13.1", "implementation": "cpython", "libc": "glibc 2.36", "machine": "aarch64",
             "abi": "cpython-313t-aarch64-linux-gnu", "folder": "/usr/lib/x"}  # fmt: skip
    assert ImagePython.of(json.dumps(facts)).abi == "cp313t"
    with pytest.raises(InfraError, match=r"its Python is pypy 3\.13\.1"):
        ImagePython.of(json.dumps({**facts, "implementation": "pypy", "abi": "pypy310-pp73-x86_64-linux-gnu"}))


async def test_a_missing_image_names_the_command_that_makes_it() -> None:
    requirements = read_requirements(["sympy>=1.13", "numpy==2.3.1"])
    engine: Any = FakeEngine("tcp://box:2376", RECIPE.reference)
    with pytest.raises(SandboxUnavailable) as caught:
        await ImageChoice(None, requirements).on(engine)
    assert "has no image agentgym-sandbox:" in str(caught.value)
    assert "(Python with numpy==2.3.1, sympy>=1.13)" in str(caught.value)
    assert "`agentgym sandbox build --packages numpy==2.3.1 'sympy>=1.13'`" in str(caught.value)
    assert build_command(()) == "agentgym sandbox build"
    with pytest.raises(SandboxUnavailable, match="`docker pull mine:1` there"):
        await ImageChoice("mine:1").on(engine)
