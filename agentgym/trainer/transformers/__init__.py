"""The trainer engine `transformers`: a model as transformers computes it, with our head and FSDP2 around it."""
