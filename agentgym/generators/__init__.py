"""Samples from the policy: the engines native, transformers and vllm, and the service of their replicas."""
