"""A recipe's sandbox options, and what importing the plugins costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentgym.config import build
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import CallCase, GradeRequest, Limits, SandboxUnavailable, StdioCase
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import what_to_do
from agentgym_sandboxes.docker.image import RECIPE
from agentgym_sandboxes.docker.profile import container_settings, first_uid
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.monty.config import MontyConfig


@pytest.mark.parametrize("name", ["docker", "monty"])
def test_an_unknown_option_names_the_nearest(name: str) -> None:
    key, near = {"docker": ("pool_sise", "pool_size"), "monty": ("worker", "workers")}[name]
    with pytest.raises(UserError, match=f"of sandbox '{name}': there is no field '{key}'. Did you mean '{near}'"):
        PluginRegistry.discover().sandbox(name)({key: 1})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": "four"}, "options of sandbox 'docker': slots is 'four' (str); allowed is int"),
        ({"slots": True}, "slots is True (bool); allowed is int"),
        ({"image": 5}, "image is 5 (int)"),
        ({"slots": 0}, "slots is 0; it must be 1 to 16"),
        ({"memory_mib": 4096}, "its container at least as much"),
        ({"ping_every_s": 0}, "ping_every_s is 0; it must be more than 0"),
        ({"engines": "tcp://a"}, "write it as a list: [tcp://a]"),
        ({"engines": ["tcp://a", 5]}, "engines[1] is 5 (int)"),
        ({"engines": ["tcp://a", "tcp://a"]}, "name each engine once"),
        ({"engines": ["tcp://a"], "engine": "tcp://b"}, "give one of the two"),
        ({"tls_ca": "ca.pem"}, "only tls_ca is given; TLS takes all of tls_ca, tls_cert and tls_key"),
        ({"spares": -1}, "spares is -1; it must be 0 or more"),
        ({"engine": "http://host"}, "give unix:///path/to/docker.sock, tcp://host:port or ssh://user@host"),
        ({"engine": "ssh://-oProxyCommand=x"}, "give unix:///path/to/docker.sock, tcp://"),
        ({"packages": ["numpy>=2", "Numpy<3"]}, "names numpy twice: numpy<3 and numpy>=2"),
        ({"packages": "numpy"}, "write it as a list: [numpy]"),
        ({"packages": ["numpy"], "image": "mine"}, "an image of your own brings its packages itself"),
        ({"preload": ["numpy==2"]}, "preload has 'numpy==2'; give names of modules, as numpy or scipy.stats"),
        ({"preload": ["-c"]}, "give names of modules"),
        ({"preload": [f"m{n}" for n in range(65)]}, "allowed are 64"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        PluginRegistry.discover().sandbox("docker")(options)
    assert said in str(caught.value)


def test_options_reach_the_config() -> None:
    config = build(DockerConfig, {"pool_size": 3, "cpus": 2, "image": None, "runtime": "runsc"})
    assert (config.pool_size, config.cpus, config.runtime) == (3, 2, "runsc")
    config = build(DockerConfig, {"engines": ["tcp://a:2375", "ssh://me@b"]})
    assert config.urls == ("tcp://a:2375", "ssh://me@b")
    assert build(MontyConfig, {"workers": 3}).num_workers == 3


def test_importing_the_plugins_loads_neither_docker_nor_monty() -> None:
    code = (
        "import sys, agentgym_sandboxes.docker as d, agentgym_sandboxes.monty as m; "
        "d.sandboxes(); m.sandboxes(); "
        "print(sorted({'docker', 'pydantic_monty', 'torch', 'requests'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_a_container_gives_nothing_away() -> None:
    settings = container_settings(DockerConfig(runtime="runsc"), "image", "owner")
    host = settings["HostConfig"]
    assert isinstance(host, dict)
    assert host["CapDrop"] == ["ALL"] and host["CapAdd"] == ["SETUID", "SETGID"]
    assert host["ReadonlyRootfs"] and host["NetworkMode"] == "none" and host["AutoRemove"]
    assert host["Runtime"] == "runsc"
    assert "Binds" not in host and "Devices" not in host and not host.get("Privileged")
    assert all("size=" in options and "noexec" in options for options in host["Tmpfs"].values())


def test_uids_stay_in_the_range_that_the_engine_maps() -> None:
    assert all(1000 < first_uid(True) < 65_000 - 64 for _ in range(200))
    assert len({first_uid(False) for _ in range(200)}) > 190


def test_supports_asks_for_the_image_and_the_interpreter() -> None:
    docker, monty = DockerBackend(), MontyBackend()
    assert docker.supports(SandboxSpec()) and docker.supports(SandboxSpec(image=RECIPE.reference))
    assert not docker.supports(SandboxSpec(image="other")) and not docker.supports(SandboxSpec(memory_mib=9999))
    assert not monty.supports(SandboxSpec()) and not monty.supports(
        SandboxSpec(image="x", allow_interpreters=("monty",))
    )
    assert monty.supports(SandboxSpec(allow_interpreters=("monty",)))


async def test_no_engine_says_what_was_tried_and_what_to_do() -> None:
    backend = DockerBackend(DockerConfig(engine="unix:///nowhere/docker.sock"))
    for attempt in (backend.probe, backend.start):
        with pytest.raises(SandboxUnavailable) as caught:
            await attempt()
        assert "tried unix:///nowhere/docker.sock (no such socket)" in str(caught.value)
        assert "sudo systemctl start docker" in str(caught.value)
        assert "agentgym sandbox build" in str(caught.value)
    await backend.close()


def test_who_may_not_use_the_engine_is_not_told_to_start_it() -> None:
    tried = ["unix:///run/docker.sock (no such socket)", "unix:///var/run/docker.sock (permission denied)"]
    assert "sudo usermod -aG docker" in what_to_do(tried) and "systemctl" not in what_to_do(tried)
    assert "sudo systemctl start docker" in what_to_do(tried[:1])


@pytest.mark.parametrize("backend", [DockerBackend(), MontyBackend()], ids=["docker", "monty"])
async def test_a_sandbox_that_was_not_started_says_so(backend: DockerBackend | MontyBackend) -> None:
    with pytest.raises(SandboxUnavailable, match="not started"):
        await backend.run("pass")


async def test_an_image_is_pulled_by_digest_only() -> None:
    from agentgym_sandboxes.docker.image import pull_image

    with pytest.raises(UserError, match="name the image by digest"):
        await pull_image(object(), "python:3.11", print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_s", 0.0), ("wall_s", float("nan")), ("wall_s", float("inf")), ("cpu_s", -1),
        ("memory_mib", 0), ("processes", 1 << 40), ("file_mib", 1 << 60), ("output_bytes", 0),
        ("answer_mib", 0),
    ],
)  # fmt: skip
def test_a_limit_that_no_machine_could_keep_is_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"limit {name} is .* above 0, at most"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_case_whose_arguments_are_no_tuple_is_refused() -> None:
    for wrong in ("abc", 5, {"x": 1}):
        with pytest.raises(UserError, match=r"args of a case is .*give a tuple"):
            CallCase(args=wrong)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="expected_args of a case"):
            CallCase(args=(), expected_args=wrong)  # type: ignore[arg-type]


def test_calls_of_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="name the function or class under test"):
        GradeRequest(code="", entry="", cases=(CallCase(args=()),))
    GradeRequest(code="", entry="", cases=(StdioCase(stdin="", expected=""),))
