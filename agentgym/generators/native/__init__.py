"""The native engine: dense Qwen3 in plain torch, with continuous batching on CPU or CUDA."""
