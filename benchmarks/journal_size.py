"""What a trainer's journal costs: bytes a token, and the time to write a step, for samples as a run makes them.

python benchmarks/journal_size.py --samples 128 --tokens 1000
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
import time
from pathlib import Path

from agentgym.trainer.journal import Batch, Journal, encode
from agentgym.types import Sample


def make_sample(number: int, tokens: int, *, reference: bool) -> Sample:
    """Half prompt, half sampled; log-probabilities have the 24 bits of a float32, as engines give them."""
    draw, known = random.Random(number), tokens // 2
    logprobs = [struct.unpack("f", struct.pack("f", -draw.expovariate(2.0)))[0] for _ in range(tokens)]
    shared = random.Random(0)
    prompt = [shared.randrange(50_000) for _ in range(known)]  # the same for the episodes of a group
    advantage = draw.gauss(0, 1)
    sampled = tokens - known
    return Sample(
        sample_id=f"{number:08x}",
        token_ids=(*prompt, *(draw.randrange(50_000) for _ in range(sampled))),
        loss_mask=(0.0,) * known + (1.0,) * sampled,
        logprobs=(0.0,) * known + tuple(logprobs[known:]),
        advantages=(0.0,) * known + (advantage,) * sampled,
        versions=(-1,) * known + (17,) * sampled,
        ref_logprobs=tuple(logprobs) if reference else (),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1000, help="of each sample")
    arguments = parser.parse_args()
    print("| reference | tokens | bytes a token | to encode | to write and fsync |\n|---|--:|--:|--:|--:|")
    for reference in (False, True):
        samples = [make_sample(n, arguments.tokens, reference=reference) for n in range(arguments.samples)]
        batch, tokens = Batch(step=1, version=0, samples=samples), arguments.samples * arguments.tokens
        began = time.perf_counter()
        size = len(encode(batch))
        encoded = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=".") as folder:
            Journal(Path(folder)).write(batch)
        written = time.perf_counter()
        times = f"{encoded - began:.3f} s | {written - encoded:.3f} s"
        print(f"| {'yes' if reference else 'no'} | {tokens:,} | {size / tokens:.1f} | {times} |")


if __name__ == "__main__":
    main()
