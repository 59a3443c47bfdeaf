"""Argument parsing: argparse with UserErrors, and dotted overrides beside its options."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn, cast

from agentgym.errors import UserError, nearest

_DOTTED = re.compile(r"--([A-Za-z_]\w*(?:\.[\w-]+)+)(=.*)?", re.DOTALL)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\.[\w-]+)*=(?!=).*", re.DOTALL)  # numpy==2.3.1 is not an assignment


class Help(argparse.RawDescriptionHelpFormatter):
    """Paragraphs are filled to the terminal's width; indented text, as lists and examples, is kept."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if re.search(r"^\s", part, re.MULTILINE) else textwrap.fill(part, width, break_on_hyphens=False)
            for part in text.split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """Mistakes are UserErrors that name the nearest option; options cannot be abbreviated."""

    def __init__(self, *, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{_indent(examples)}",
            formatter_class=Help,
            allow_abbrev=False,
        )
        self.sections: Callable[[], Mapping[str, Sequence[str]]] = dict
        """Of the recipe that the options change, with their fields: they are named where one is taken for an option."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}. `{self.prog} --help` shows what it takes.")

    def parse_strictly(self, words: Sequence[str]) -> argparse.Namespace:
        arguments, unknown = self.parse_known_args(self._with_dashed_values(words))
        if unknown:
            after = list(words)[list(words).index(unknown[0]) + 1 :] if unknown[0] in words else []
            self._chosen(arguments)._refuse(unknown[0], next((one for one in after[:1] if one[0] != "-"), ""))
        return arguments

    def _with_dashed_values(self, words: Sequence[str]) -> list[str]:
        """The words, in which `--sort -cost` is `--sort=-cost`: argparse takes the value for an option."""
        valued, found = self.valued_options(), list[str]()
        for word in words:
            if found and found[-1] in valued and re.fullmatch(r"-[A-Za-z_]{2}.*", word):
                found[-1] += f"={word}"
            else:
                found.append(word)
        return found

    def valued_options(self) -> set[str]:
        """The options that are followed by one value."""
        return {name for action in self._actions if action.nargs is None for name in action.option_strings}

    def _refuse(self, word: str, following: str) -> NoReturn:
        option, _, value = word.partition("=")
        sections = {f"--{name}": fields for name, fields in self.sections().items()}
        if option in sections:
            name, fields = option.removeprefix("--"), sections[option]
            paths = [f"{option}.{field or 'NAME'}" for field in fields]
            shown = f"its fields are {', '.join(paths)}"
            if "name" in fields:
                shown = f"write {option}.name {value or following or 'NAME'}"
            self.error(f"{name} is a section of the recipe, not an option: {shown}")
        options = [name for action in self._actions for name in action.option_strings]
        hint = nearest(option, options) if word.startswith("-") else ""
        close = difflib.get_close_matches(option, [*options, *sections], n=1, cutoff=0.5)
        if close and close[0] in sections:
            field = "name" if "name" in sections[close[0]] else sections[close[0]][0] or "NAME"
            hint = f" Did you mean '{close[0]}.{field}'?"
        self.error(f"unknown argument {word!r}.{hint}".rstrip(". "))

    def _chosen(self, arguments: argparse.Namespace) -> Parser:
        """The parser of the given action, if there are actions; else this one."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and action.dest in vars(arguments):
                return cast(Parser, action.choices[getattr(arguments, action.dest)])
        return self


def split_overrides(words: Sequence[str], valued: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The overrides among the words, as `section.field=value`, and all other words.

    An override is `--section.field value`, `--section.field=value`, `section.field=value` or `--set key=value`.
    valued: options that are followed by a value, which is not an override even where it looks like one.
    """
    overrides: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            others.extend([word, *rest])
            break
        dotted = _DOTTED.fullmatch(word)
        if dotted and dotted[2] is not None:
            overrides.append(f"{dotted[1]}{dotted[2]}")
        elif dotted or word == "--set":
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{word} needs a value, as in --trainer.procs 4 or --set trainer.procs=4")
            value = rest.pop(0)
            overrides.append(f"{dotted[1]}={value}" if dotted else value)
        elif word in valued and rest and not rest[0].startswith("--"):
            others += [word, rest.pop(0)]
        elif _ASSIGNED.fullmatch(word):
            overrides.append(word)
        else:
            others.append(word)
    return overrides, others


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
