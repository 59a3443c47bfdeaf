"""From a Hugging Face folder's config.json to the model that torchtitan builds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentgym.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a dense Qwen3."""

    vocab_size: int
    dim: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    tied: bool
    max_positions: int

    @property
    def attention_break_even(self) -> float:
        """The row length at which attention costs as many operations as a layer's matrices."""
        width = self.num_heads * self.head_dim
        matrices = 2 * self.dim * (width + self.num_kv_heads * self.head_dim) + 3 * self.dim * self.hidden_dim
        return matrices / (2 * width)

    def hf_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight under its Hugging Face name; a tied lm_head is left out."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.dim)}
        for layer in range(self.num_layers):
            of_layer = {
                "self_attn.q_proj": (width, self.dim),
                "self_attn.k_proj": (kv_width, self.dim),
                "self_attn.v_proj": (kv_width, self.dim),
                "self_attn.o_proj": (self.dim, width),
                "self_attn.q_norm": (self.head_dim,),
                "self_attn.k_norm": (self.head_dim,),
                "mlp.gate_proj": (self.hidden_dim, self.dim),
                "mlp.up_proj": (self.hidden_dim, self.dim),
                "mlp.down_proj": (self.dim, self.hidden_dim),
                "input_layernorm": (self.dim,),
                "post_attention_layernorm": (self.dim,),
            }
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        shapes["model.norm.weight"] = (self.dim,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.dim)
        return shapes


def read_architecture(folder: str) -> Architecture:
    """Read config.json. Raises UserError when it is missing, not JSON, or not a dense Qwen3."""
    path = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no {path}: give a folder in Hugging Face format, with config.json") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} can't be read: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") != "qwen3":
        given = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise UserError(f"{path}: model_type is {given!r}; the trainer knows 'qwen3' (dense)")
    if config.get("attention_bias") or config.get("use_sliding_window"):
        raise UserError(f"{path}: attention_bias and use_sliding_window are not supported; set both to false")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"{path}: rope_type is {rope['rope_type']!r}; the trainer knows 'default'")
    try:
        return Architecture(
            vocab_size=config["vocab_size"],
            dim=config["hidden_size"],
            hidden_dim=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            max_positions=config.get("max_position_embeddings", 32768),
        )
    except KeyError as error:
        raise UserError(f"{path} has no field {error}") from error


def titan_config(
    architecture: Architecture,
    *,
    attention: Literal["sdpa", "flex"],
    seq_len: int,
    logprob_chunk: int,
    temperature: float = 1.0,
) -> Any:
    """torchtitan's configuration of the model: with our log-probability head, and our attention for sdpa.

    temperature: log-probabilities are of the softmax of logits / temperature.
    """
    from agentgym.trainer import titan
    from agentgym.trainer.attention import PackedSDPA
    from agentgym.trainer.head import LogProbHead

    dim, tied = architecture.dim, architecture.tied
    norm = titan.qwen3._qwen3_norm
    embedding_init = titan.qwen3._EMBEDDING_SKIP_INIT if tied else titan.qwen3._EMBEDDING_INIT
    layers = titan.qwen3._build_qwen3_layers(
        n_layers=architecture.num_layers,
        dim=dim,
        n_heads=architecture.num_heads,
        n_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        hidden_dim=architecture.hidden_dim,
        fuse_qkv=True,
        attn_backend="flex",
        rope=titan.CosSinRoPE.Config(
            dim=architecture.head_dim, max_seq_len=seq_len, theta=architecture.rope_theta
        ),
    )
    config = titan.Qwen3Model.Config(
        vocab_size=architecture.vocab_size,
        dim=dim,
        norm=norm(dim),
        enable_weight_tying=tied,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=architecture.vocab_size, embedding_dim=dim, param_init=embedding_init
        ),
        lm_head=LogProbHead.Config(
            in_features=dim,
            out_features=architecture.vocab_size,
            param_init=titan.qwen3._LINEAR_INIT,
            chunk=logprob_chunk,
            temperature=temperature,
        ),
        layers=layers,
    )
    config.norm.eps = architecture.norm_eps
    for layer in config.layers:
        if attention == "sdpa":
            layer.attention.inner_attention = PackedSDPA.Config()
        for part in (layer.attention_norm, layer.ffn_norm, layer.attention.qk_norm):
            part.eps = architecture.norm_eps
    return config
