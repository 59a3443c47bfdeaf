"""Write task folders in Harbor's format for a small policy: short shell commands, in containers of three images.

python -m apps.shell_tasks tasks
agentgym train --env harbor --env.options.path tasks --env.options.test_share 0.25
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_WORDS: Final = """red blue green black white gold gray pink north south east west sun moon star sky tree leaf seed root
stone sand hill lake river rain snow wind cloud fire bird fish wolf bear horse boat door lamp bell coin"""
WORDS: Final = tuple(_WORDS.split())
FILES: Final = {
    "root": {"list": "one\ntwo\nthree\n", "note": "hello\n", "log": "start\nstop\n"},
    "user": {"list": "one\ntwo\n", "note": "good day\n", "log": "start\nwait\nstop\nend\n"},
    "small": {"list": "a\nb\nc\nd\ne\n", "note": "hi\n", "log": "x\n"},
}
"""What the work folder of each image has."""

DOCKERFILES: Final = {
    "root": "FROM {base}\nUSER root\nWORKDIR /app\nCOPY list note log ./\n",
    "user": "FROM {base}\nCOPY --chown=1000:1000 list note log /home/app/\nUSER 1000:1000\nWORKDIR /home/app\n",
    "small": "FROM {base} AS base\nFROM scratch\nCOPY --from=base /lib /lib\nCOPY --from=base /lib64 /lib64\n"
    + "".join(
        f"COPY --from=base /usr/bin/{name} /bin/{name}\n"
        for name in ["cat", "cmp", "cp", "dash", "mkdir", "mv", "rm", "sh", "sort", "tail", "test", "wc"]
    )
    + "ENV PATH=/bin\nWORKDIR /work\nCOPY list note log ./\n",
}
HEAD: Final = "#!/bin/sh\nmkdir -p /logs/verifier\n"


@dataclass(frozen=True, slots=True)
class ShellTask:
    """One task. test: a condition of the shell, in the work folder."""

    name: str
    instruction: str
    solution: str
    test: str


def shell_tasks(image: str) -> Iterator[ShellTask]:
    """All that can be asked in an image, in a fixed order."""
    files = FILES[image]
    for file, word in itertools.product((*files, *WORDS[:4]), WORDS):
        asked, is_done = f"Write {word} to {file}.", f'[ "$(cat {file})" = {word} ]'
        yield ShellTask(f"write-{word}-{file}", asked, f"echo {word} > {file}", is_done)
    for file, word in itertools.product(files, WORDS):
        text = files[file]
        is_longer, is_same = f'[ "$(cat {file})" = "{text}{word}" ]', f'[ "$(cat {word})" = "{text.rstrip()}" ]'
        counted = f'[ "$(cat {word})" -eq {len(text.splitlines())} ]'
        for name, asked, solution, is_done in (
            (f"append-{word}-{file}", f"Append {word} to {file}.", f"echo {word} >> {file}", is_longer),
            (
                f"rename-{file}-{word}",
                f"Rename {file} to {word}.",
                f"mv {file} {word}",
                f"[ ! -e {file} ] && {is_same}",
            ),
            (f"copy-{file}-{word}", f"Copy {file} to {word}.", f"cp {file} {word}", f"[ -e {file} ] && {is_same}"),
            (f"count-{file}-{word}", f"Count lines of {file} to {word}.", f"wc -l < {file} > {word}", counted),
        ):
            yield ShellTask(name, asked, solution, is_done)


def write_tasks(folder: Path, base: str, *, count: int, seed: int = 0) -> list[Path]:
    """Write `count` tasks, a third of each image, and return their folders. base: an image with coreutils.

    Each is asked in one image, so that no held-out task is a task of training in another image.
    """
    of_image = {image: {task.name: task for task in shell_tasks(image)} for image in DOCKERFILES}
    images, written = list(of_image), []
    names = random.Random(seed).sample(list(of_image[images[0]]), count)
    for image, name in zip(itertools.cycle(images), names, strict=False):
        written.append(folder / f"{image}-{name}")
        _write(written[-1], image, base, of_image[image][name])
    return written


def _write(at: Path, image: str, base: str, task: ShellTask) -> None:
    contents = {
        "task.toml": f'[metadata]\ncategory = "{task.name.partition("-")[0]}"\n'
        "[environment]\nmemory_mb = 128\ncpus = 1\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 30\n",
        "instruction.md": f"{task.instruction}\n",
        "solution/solve.sh": f"{task.solution}\n",
        "tests/test.sh": f"{HEAD}if {task.test}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
        "environment/Dockerfile": DOCKERFILES[image].format(base=base),
        **{f"environment/{name}": text for name, text in FILES[image].items()},
    }
    for name, text in contents.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m apps.shell_tasks", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the task folders are written")
    parser.add_argument("--base", default="debian:bookworm-slim", help="the image that all three images are made of")
    parser.add_argument("--count", type=int, default=120, help="how many tasks, at most 760")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    print(f"{len(write_tasks(given.folder, given.base, count=given.count, seed=given.seed))} tasks in {given.folder}")


if __name__ == "__main__":
    main()
