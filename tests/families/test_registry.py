"""The families' records: found by themselves, and read as transformers reads the same config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.families import by_transformers
from agentgym.families.architecture import HeadTransform
from agentgym.families.family import TINY, tiny_config
from agentgym.families.registry import architecture_of, dense_of, families, family_of
from agentgym.families.table import written


@pytest.mark.parametrize("model_type", sorted(name for name, family in families().items() if family.dense))
def test_a_dense_family_has_the_sizes_that_transformers_reads(model_type: str) -> None:
    config = tiny_config(families()[model_type])
    mine, theirs = dense_of(config, "config.json"), by_transformers.read(config, "config.json")
    assert mine.hf_shapes() == theirs.hf_shapes() and mine.num_parameters == theirs.num_parameters
    unread = {"rope_theta": mine.rope_theta, "layers": (), "qkv_bias": mine.qkv_bias, "norm_eps": mine.norm_eps}
    assert replace(theirs, **unread) == mine


def test_a_family_that_nobody_wrote_down_is_read_by_transformers() -> None:
    config = {**TINY, "model_type": "cohere", "logit_scale": 0.125}
    found = architecture_of(config, "config.json")
    assert found.head == HeadTransform(scale=1 / 8) and found.own_shapes is not None
    assert family_of(found).packs == "mask" and family_of(found).router is None
    with pytest.raises(UserError, match=r"x/config\.json: model_type is 'cohera', which .* Did you mean 'cohere'\?"):
        architecture_of(config | {"model_type": "cohera"}, "x/config.json")


def test_what_a_dense_family_refuses_is_left_to_transformers() -> None:
    config = tiny_config(families()["llama"]) | {"attention_bias": True}
    with pytest.raises(UserError, match="do not compute biases in attention"):
        dense_of(config, "config.json")
    assert "model.layers.0.self_attn.o_proj.bias" in architecture_of(config, "config.json").hf_shapes()


def test_experts_have_the_names_that_they_have_in_files() -> None:
    sizes = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    found = architecture_of({**TINY, "model_type": "qwen3_moe", **sizes}, "config.json")
    assert found.hf_shapes()["model.layers.1.mlp.experts.3.gate_proj.weight"] == (16, 32)
    assert found.experts is not None and (found.experts.num, found.experts.top_k) == (4, 2)
    assert found.experts.layers == (0, 1) and found.ffn_dim == 2 * 16


def test_the_page_of_models_has_the_table_of_the_records() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == written(page), "`python -m agentgym.families.table docs/models.md` writes it again"
