"""Finds the user that an image names, in the image's own files, as the engine does."""

from __future__ import annotations

from typing import NamedTuple


class User(NamedTuple):
    """groups: the supplementary ones. home: as /etc/passwd has it, or the root folder."""

    uid: int
    gid: int
    groups: list[int]
    home: str


def find_user(text: str, etc: str = "/etc") -> User:
    """The user of `name`, `uid`, `name:group` or `uid:gid`; root for an empty text. Raises LookupError."""
    name, _, group = text.partition(":")
    name = name or "0"
    accounts = [row for row in _rows(f"{etc}/passwd") if len(row) >= 6 and row[2].isdigit() and row[3].isdigit()]
    groups = [row for row in _rows(f"{etc}/group") if len(row) >= 4 and row[2].isdigit()]
    account = next((row for row in accounts if name in (row[0], row[2])), None)
    if account is None and not name.isdigit():
        raise LookupError(f"the image's user is {text!r}, and its /etc/passwd has no {name!r}")
    uid, gid, home = (int(account[2]), int(account[3]), account[5] or "/") if account else (int(name), 0, "/")
    if not group:
        member = account[0] if account else name
        return User(uid, gid, [int(row[2]) for row in groups if member in row[3].split(",")], home)
    found = next((row for row in groups if group in (row[0], row[2])), None)
    if found is None and not group.isdigit():
        raise LookupError(f"the image's user is {text!r}, and its /etc/group has no {group!r}")
    return User(uid, int(found[2]) if found else int(group), [], home)


def _rows(path: str) -> list[list[str]]:
    try:
        with open(path, errors="replace") as file:
            return [line.rstrip("\n").split(":") for line in file]
    except OSError:  # an image from scratch
        return []
