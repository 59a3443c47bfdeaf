"""The native engine: dense Qwen3, Qwen2 and Llama in plain torch, with continuous batching on CPU or CUDA."""
