"""The plain engine: a model as transformers loads it, behind our protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentgym.errors import UserError
from agentgym.families.architecture import TIED_HEAD, collect
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.threaded import ThreadedEngine
from agentgym.generators.transformers.scheduler import PlainScheduler
from agentgym.models.routers import Routers, routers_of
from agentgym.models.safetensors import read_shapes


class TransformersEngine(ThreadedEngine[nn.Module]):
    """Any architecture of AutoModelForCausalLM from a local Hugging Face folder; implements `GeneratorEngine`.

    Code that comes with a model is not run.
    """

    def __init__(self, config: GeneratorConfig, model_path: str) -> None:
        from transformers import AutoConfig
        from transformers.utils import logging

        quiet: Any = logging.disable_progress_bar  # it has no types
        quiet()  # a bar for every update would fill the process's log
        try:
            self._model_config: Any = AutoConfig.from_pretrained(model_path)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"transformers can't read the model in {model_path}: {error}") from error
        text = self._model_config.get_text_config(decoder=True)
        super().__init__(
            config, model_path, vocab_size=text.vocab_size, max_positions=getattr(text, "max_position_embeddings", None)
        )

    def _routers_of(self, model: nn.Module) -> Routers | None:
        """Raises UserError for generator.routes with a model without experts that are known."""
        return routers_of(model.model, self._folder) if self._config.routes else None  # type: ignore[arg-type]

    def _load(self) -> PlainScheduler:
        from transformers import AutoModelForCausalLM

        factory: Any = AutoModelForCausalLM  # its classmethods have no types
        try:
            loaded = factory.from_pretrained(self._folder, dtype=self._dtype, output_loading_info=True)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise UserError(f"transformers can't load the model in {self._folder}: {error}") from error
        model = self._checked(*loaded)
        self._model_class: Any = type(model)
        config = self._config
        with torch.inference_mode():
            return PlainScheduler(
                model, max_batch=config.max_batch, routers_of=self._routers_of, alone=config.batch_invariant
            )

    def _copied(self, weights: Iterable[tuple[str, Tensor]]) -> nn.Module:
        """A second model, which takes the first one's place: so transformers converts the weights as at the start."""
        shapes = read_shapes(self._folder)
        if self._model_config.tie_word_embeddings:
            shapes.pop(TIED_HEAD, None)
        copied = ((name, tensor.detach().to("cpu", self._dtype, copy=True)) for name, tensor in weights)
        loaded = self._model_class.from_pretrained(
            None,
            config=self._model_config,
            state_dict=collect(shapes, copied),
            dtype=self._dtype,
            output_loading_info=True,
        )
        return self._checked(*loaded)

    def _checked(self, model: nn.Module, info: Mapping[str, Any]) -> nn.Module:
        """Raises UserError where transformers would go on with weights that nobody gave."""
        absent = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
        if absent:
            raise UserError(
                f"{len(absent)} weights of the model in {Path(self._folder)} are missing or of another shape, "
                f"first {absent[:3]}"
            )
        return model.to(self._device).eval()
