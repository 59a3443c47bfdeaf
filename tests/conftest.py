"""What all tests share: signals as a terminal's programs have them, and properties that no clock judges."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

collect_ignore_glob = ["data/*"]  # files of examples, which have tests of their own
# A machine that is slow, or busy with other tests, says nothing about a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
_begun: set[Path] = set()  # files of which a test has run
_unfreeze = gc.unfreeze
_given_back = False


def pytest_configure(config: pytest.Config) -> None:
    """Who starts the tests in the background, or with nohup, would have them ignore signals."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _own_temporary_folder(config)


def _own_temporary_folder(config: pytest.Config) -> None:
    """For what killed processes leave, which is gone when the tests end. pytest's own folders stay where they are."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="agentgym-tests-"))
    folder.chmod(0o1777)  # other users' processes have their files in it, as in /tmp
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector would walk through torch and thousands of tests for a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _set_apart()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A file whose tests opened a runtime has given back what was set apart."""
    if item.path not in _begun:
        _begun.add(item.path)
        if _given_back:
            _set_apart()


def _set_apart() -> None:
    global _given_back
    gc.collect()
    gc.freeze()
    _given_back = False


def _give_back() -> None:
    """To count what is set apart, as gc does, takes as long as to walk through it."""
    global _given_back
    _unfreeze()
    _given_back = True


gc.unfreeze = _give_back


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes may share the tests: a file is one's, and so are all that share what the machine has once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    uses = {*getattr(item, "fixturenames", ())}
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        uses |= {value for value in item.callspec.params.values() if isinstance(value, str)}
    if item.get_closest_marker("docker") is not None or uses & {"engine", "archive"}:
        return "sandboxes"  # they look at the engine's containers
    if "bubblewrap" in uses:
        return "bubblewrap"  # the limit on processes is that of one user
    if item.get_closest_marker("hostile") is not None and Path(__file__).parent / "sandboxes" in item.path.parents:
        return "sandboxes"  # an attack may take all that the machine has
    return str(item.path)
