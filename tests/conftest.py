"""What all tests share: signals as a terminal's programs have them, and properties that no clock judges."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A machine that is slow, or busy with other tests, says nothing about a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Who starts the tests in the background, or with nohup, would have them ignore signals."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
