"""Makes the tables and the curve of docs/results.md, by running whole training runs one after another.

    python benchmarks/results.py learning     three seeds and the controls
    python benchmarks/results.py environments the other environments, with controls: prints a table
    python benchmarks/results.py overlap      asynchronous against synchronous
    python benchmarks/results.py write        docs/results.md from what was measured

Each arm runs `benchmarks/arm.py` in a process of its own; its figures are kept in benchmarks/measured/, so an
arm that is there already is not run again (`--again` does). Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
MEASURED = HERE / "measured"
DOCUMENT = HERE.parent / "docs" / "results.md"
CURVE = HERE.parent / "docs" / "results-curve.png"

STALE = ("--lag", "16", "--set", "loop.max_staleness=0", "--set", "loop.steps=40")
STEPS = ("--set", "loop.steps=60")  # more than the default, so that the end is flat
LEARNING: Mapping[str, tuple[str, ...]] = {
    "seed-0": STEPS,
    "seed-1": (*STEPS, "--set", "loop.seed=1", "--set", "trainer.seed=1"),
    "seed-2": (*STEPS, "--set", "loop.seed=2", "--set", "trainer.seed=2"),
    "random-reward": (*STEPS, "--random-reward"),
    "learning-rate-0": (*STEPS, "--set", "optimizer.lr=0"),
    "stale-16-corrected": STALE,
    "stale-16-uncorrected": (*STALE, "--set", "loss.name=reinforce"),
    "docker": (*STEPS, "--set", "sandbox.name=docker"),
}


def _seeds(name: str, *words: str) -> dict[str, tuple[str, ...]]:
    """Three arms, one for each seed."""
    return {
        f"{name}-{seed}": (*words, "--set", f"loop.seed={seed}", "--set", f"trainer.seed={seed}") for seed in range(3)
    }


MATH = (*STEPS, "--set", "env.name=math", "--set", "env.options.levels=[1,2]")
TOOLS = (*STEPS, "--set", "env.name=tool_use", "--set", "env.options.levels=[1,2]")
DIGITS = MEASURED / "digits.py"  # the environment of README.md
README = ("--set", f"env.name={DIGITS}:Digits", "--set", "loop.steps=20")
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    **_seeds("math", *MATH),
    "math-random-reward": (*MATH, "--random-reward"),
    **_seeds("tool_use", *TOOLS),
    "tool_use-withheld": (*TOOLS, "--set", "env.options.withhold_replies=true"),
    **_seeds("readme", *README),
    "readme-learning-rate-0": (*README, "--set", "optimizer.lr=0"),
    "learnable": (*STEPS, "--set", "task_sampler=learnable"),
}
WORK = ("--set", "loop.steps=40")
OVERLAP: Mapping[str, tuple[str, ...]] = {
    f"{kind}-{name}": (*WORK, "--set", f"loop.max_staleness={staleness}", *extra)
    for kind, extra in (("plain", ()), ("delayed", ("--delay-ms", "200")))
    for name, staleness in (("sync", 0), ("async-1", 1), ("async-3", 3))
}
Figures = Mapping[str, object]


def measure(arms: Mapping[str, tuple[str, ...]], *, again: bool, at_once: int) -> bool:
    """Run the arms that are not measured yet. at_once: how many; with more than one, each has two cores of its own.

    Whether all of them came to their end.
    """
    MEASURED.mkdir(exist_ok=True)
    _, _, rest = (HERE.parent / "README.md").read_text().partition(f"<!-- file: {DIGITS.name} -->\n```python\n")
    DIGITS.write_text(rest.partition("```")[0])
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(at_once):
        free.put(place)

    def run(name: str, words: tuple[str, ...]) -> bool:
        place = free.get()
        try:
            return _run(name, words, (2 * place, 2 * place + 1) if at_once > 1 else ())
        finally:
            free.put(place)

    started = []
    with ThreadPoolExecutor(at_once) as pool:
        for name, words in arms.items():
            if (MEASURED / f"{name}.json").exists() and not again:
                print(f"{name}: measured already")
            else:
                started.append(pool.submit(run, name, words))
    return all([future.result() for future in started])


def _run(name: str, words: tuple[str, ...], cores: tuple[int, ...]) -> bool:
    command = [sys.executable, str(HERE / "arm.py"), "--name", name]
    if "--delay-ms" not in words and "sandbox.name=docker" not in words:
        command += ["--set", "sandbox.name=monty"]
    if cores:
        command = ["taskset", "-c", ",".join(map(str, cores)), *command]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: FAILED\n{done.stderr[-3000:]}", flush=True)
        return False
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    (MEASURED / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(
        f"{name}: {figures['first']:.3f} -> {figures['last']:.3f} "
        f"in {figures['training_s']:.0f} s of training, {figures['wall_s']:.0f} s in all",
        flush=True,
    )
    return True


def load(names: Iterable[str]) -> dict[str, Figures]:
    found = {name: MEASURED / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}


def number(figures: Figures, key: str) -> float:
    value = figures[key]
    assert isinstance(value, (int, float)), key
    return float(value)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [list(header), *map(list, rows)]]
    return "\n".join([lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]])


def learning_table(measured: Mapping[str, Figures]) -> str:
    header = ("arm", "held-out success before", "after", "rise (95% interval, paired by task)")
    rows = [
        (
            name,
            f"{number(f, 'first'):.3f}",
            f"{number(f, 'last'):.3f}",
            f"{number(f, 'rise'):+.3f} [{number(f, 'rise_low'):+.3f}, {number(f, 'rise_high'):+.3f}]",
        )
        for name, f in measured.items()
    ]
    return table(header, rows)


def overlap_table(measured: Mapping[str, Figures]) -> str:
    rows = []
    for name, figures in measured.items():
        base = measured[name.split("-")[0] + "-sync"]
        ratio = number(base, "training_s") / number(figures, "training_s")
        rows.append(
            (
                name,
                f"{number(figures, 'training_s'):.0f} s",
                f"{ratio:.2f}x",
                f"{number(figures, 'last'):.3f}",
                f"{number(figures, 'staleness_mean'):.2f} / {number(figures, 'staleness_max'):.0f}",
                f"{number(figures, 'compute_share'):.1%}",
            )
        )
    return table(("arm", "training", "against sync", "success after", "staleness mean / max", "any of these"), rows)


def draw_curve(measured: Mapping[str, Figures]) -> None:
    """A running mean over ten steps."""
    runs: dict[str, list[float]] = {}
    for name, figures in measured.items():
        values = figures["successes"]
        assert isinstance(values, list)
        runs[name] = values
    _draw_success(runs, CURVE, smooth=10)


def _draw_success(runs: Mapping[str, list[float]], picture: Path, *, smooth: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, success in runs.items():
        means = [statistics.fmean(success[max(0, end - smooth) : end]) for end in range(1, len(success) + 1)]
        axes.plot(range(1, len(means) + 1), means, label=name, linewidth=1.6)
    axes.set(xlabel="training step", ylabel="success of training episodes", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, no GPU"


def write() -> None:
    """Replace the text between the markers of docs/results.md."""
    learning, overlap = load(LEARNING), load(OVERLAP)
    parts = {"machine": f"Machine: {machine()}."}
    if learning:
        draw_curve(learning)
        seeds = [number(f, "rise") for name, f in learning.items() if name.startswith("seed-")]
        mean = f"\n\nMean rise of {len(seeds)} seeds: {statistics.fmean(seeds):+.3f}, the least {min(seeds):+.3f}."
        peak = max(number(f, "peak_mib") for f in learning.values())
        parts["learning"] = learning_table(learning) + mean + f" Peak memory of the process tree: {peak:.0f} MiB."
    if overlap:
        parts["overlap"] = overlap_table(overlap)
    text = DOCUMENT.read_text()
    for name, body in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{body}\n{end}{tail}"
    DOCUMENT.write_text(text)
    print(f"wrote {DOCUMENT}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["learning", "environments", "overlap", "write"])
    parser.add_argument("--again", action="store_true", help="measure arms again that are there")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="arms beside each other, two cores each")
    parser.add_argument("--only", nargs="*", help="only these arms")
    arguments = parser.parse_args()
    if arguments.what == "write":
        write()
        return 0
    arms = {"learning": LEARNING, "environments": ENVIRONMENTS, "overlap": OVERLAP}[arguments.what]
    if arguments.only:
        arms = {name: arms[name] for name in arguments.only}
    measured = measure(arms, again=arguments.again, at_once=arguments.at_once)
    if arguments.what == "environments":
        print(learning_table(load(arms)))
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
