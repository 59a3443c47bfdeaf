"""Models, and the settings of the engines that are tested with them."""

from __future__ import annotations

import pytest
import torch
from plain_model import make_model

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def old_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("old"), seed=0)


@pytest.fixture(scope="session")
def new_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("new"), seed=1)


@pytest.fixture(scope="session")
def generator_config():
    return GeneratorConfig(engine=NativeEngineConfig(), device="cpu", max_batch=8, max_model_len=256)
