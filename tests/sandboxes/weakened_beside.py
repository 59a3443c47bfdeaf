"""Weakened sandboxes that trust the calls of a container with each other, and a session with its own words."""

from __future__ import annotations

from weakening import Patch, Weakening


def _one(name: str, trial: str, *patches: Patch, alone: bool = False) -> Weakening:
    return Weakening(name=name, breaks=tuple(trial.split()), patches=patches, alone=alone)


BESIDE = (
    _one(
        "a home has a name that others can take",
        "taken_homes",
        (
            "        except FileExistsError:\n            folder = f",
            "        except ValueError:\n            folder = f",
        ),
    ),
    _one(
        "a call that finds no room to begin has failed",
        "no_room_to_start",
        (' if end["fork_error"] in (errno.ENOSPC, errno.EDQUOT) else "no_process"', ' if False else "no_process"'),
    ),
    _one(
        "a process is as much as a call",
        "all_of_the_processor",
        ("            if nice > self._nices.get(uid, FIRST_NICE):", "            if False:"),
    ),
    _one(
        "files stay while they are looked at",
        "restless_files",
        ("except FileNotFoundError:  # a neighbour's", "except ValueError:  # a neighbour's"),
    ),
    _one(
        "all in a call's folders is thought to be its own",
        "folders_of_others",
        ("                        if owner in neighbours:\n", "                        if False:\n"),
        ("    if owner == uid:\n        os.chmod(name", "    if True:\n        os.chmod(name"),
    ),
    _one(
        "room that is gone is thought to be with others",
        "disk_out_of_sight memory_out_of_sight",
        ("return job.beside > 0 and memory_left_mib() < CROWDED_BELOW * job.limits.memory_mib\n", "return True\n"),
        ("return lacked_disk and (", "return lacked_disk or ("),
    ),
    _one(
        "the zygote has only children of its own making",
        "children_of_the_runner",
        ("if pid not in keys:\n            continue", "if pid not in keys:\n            raise KeyError(pid)"),
        alone=True,
    ),
    _one(
        "a session's Python speaks for itself",
        "malformed_messages",
        (
            "LookupError, ArithmeticError, RecursionError):\n            return  # of foreign",
            "LookupError):\n            return  # of foreign",
        ),
    ),
    _one(
        "a session may have any number of connections",
        "waiting_in_a_session",
        ("MAX_CONNECTIONS, LOOK_EVERY_S = 20_000,", "MAX_CONNECTIONS, LOOK_EVERY_S = 1 << 30,"),
    ),
    _one(
        "a session's files stand still, and fit",
        "restless_session long_paths",
        ("except (FileNotFoundError, PermissionError):\n", "except ValueError:\n"),
        (" or num_chars > MAX_CHARS", ""),
        ('if "fork_error" in end:\n            header', "if not lines or job.reason is not None:\n            header"),
        alone=True,
    ),
)
