"""Our own torch engine for dense Qwen3: continuous batching on CPU or CUDA."""
