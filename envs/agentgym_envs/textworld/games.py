"""What runs in the killable processes: TextWorld makes games, compiles them and plays them from the beginning."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from agentgym.types import Json

_FOLDER: Final = "agentgym-textworld-{}"  # of the compiled games, which everybody of this user shares
_TITLE: Final = re.compile(r"\$\$|^\s*[_|\\/ ]{8,}$")  # of the picture
_MAX_GAMES: Final = 8  # running in a process


def serve(argument: Json) -> Json:
    """Answers one of two requests, which both hold `game`, the settings.

    Alone: {"walkthrough", "objective", "commands"} of the game. With `commands`, all that were given since its
    beginning: {"feedback" to the last one, "won", "lost", "score", "max_score"}.
    """
    assert isinstance(argument, dict)
    game = argument["game"]
    assert isinstance(game, dict)
    settings = tuple(sorted((name, int(str(value))) for name, value in game.items()))
    if "commands" not in argument:
        made = _made(settings)
        return {"walkthrough": list(made.metadata["walkthrough"]), "objective": str(made.objective)}
    commands = argument["commands"]
    assert isinstance(commands, list)
    return _played(settings, [str(command) for command in commands])


def _played(settings: tuple[tuple[str, int], ...], commands: list[str]) -> Json:
    env = _running(settings)
    state = env.reset()
    for command in commands:
        state, _, done = env.step(command)
        if done:
            break
    return {
        "feedback": _plain(state.feedback),
        "won": bool(state.won),
        "lost": bool(state.lost),
        "score": int(state.score or 0),
        "max_score": int(state.max_score or 0),
    }


@functools.lru_cache(_MAX_GAMES)
def _running(settings: tuple[tuple[str, int], ...]) -> Any:
    import textworld

    wanted = textworld.EnvInfos(feedback=True, won=True, lost=True, score=True, max_score=True)
    return textworld.start(_compiled(settings), request_infos=wanted)


def _compiled(settings: tuple[tuple[str, int], ...]) -> str:
    """The path of the game's file, which is made once: the file appears under its name when it is whole."""
    import textworld

    folder = Path(tempfile.gettempdir()) / _FOLDER.format(os.getuid())
    folder.mkdir(mode=0o700, exist_ok=True)
    key = hashlib.sha256(repr((textworld.__version__, settings)).encode()).hexdigest()[:24]
    path = folder / key / "game.z8"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            options = _options(settings)
            options.path = str(Path(work) / "game.z8")
            textworld.generator.compile_game(_made(settings), options)
            path.parent.mkdir(exist_ok=True)
            for name in ("game.json", "game.z8"):  # the story file last: it is what is looked for
                (Path(work) / name).replace(path.parent / name)
    return str(path)


@functools.lru_cache(_MAX_GAMES)
def _made(settings: tuple[tuple[str, int], ...]) -> Any:
    import textworld

    return textworld.generator.make_game(_options(settings))


def _options(settings: tuple[tuple[str, int], ...]) -> Any:
    import textworld

    options = textworld.GameOptions()
    given = dict(settings)
    options.seeds = given.pop("seed")
    for name, value in given.items():
        setattr(options, name, value)
    return options


def _plain(feedback: str) -> str:
    """Removes the title's picture, the prompt, the status line, and repeated empty lines."""
    text = feedback.partition("\n>")[0]
    lines = [
        line.rstrip() for line in text.splitlines() if "$$" not in line and not re.fullmatch(r"\s*[_|\\/ ]{8,}", line)
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
