"""Weakened sandboxes that trust the calls of a container with each other, and a session with its own words."""

from __future__ import annotations

from weakening import Weakening

BESIDE = (
    Weakening(
        name="a home has a name that others can take",
        patches=(
            (
                "        except FileExistsError:\n            folder = f",
                "        except ValueError:\n            folder = f",
            ),
        ),
        breaks=("taken_homes",),
    ),
    Weakening(
        name="a call that finds no room to begin has failed",
        patches=(
            (
                ' if end["fork_error"] in (errno.ENOSPC, errno.EDQUOT) else "no_process"',
                ' if False else "no_process"',
            ),
        ),
        breaks=("no_room_to_start",),
    ),
    Weakening(
        name="a process is as much as a call",
        patches=(("            if nice > self._nices.get(uid, FIRST_NICE):", "            if False:"),),
        breaks=("all_of_the_processor",),
    ),
    Weakening(
        name="files stay while they are looked at",
        patches=(
            (
                "            except FileNotFoundError:  # a neighbour's",
                "            except ValueError:  # a neighbour's",
            ),
        ),
        breaks=("restless_files",),
    ),
    Weakening(
        name="all in a call's folders is thought to be its own",
        patches=(
            ("                        if owner in neighbours:\n", "                        if False:\n"),
            ("    if owner == uid:\n        os.chmod(name", "    if True:\n        os.chmod(name"),
        ),
        breaks=("folders_of_others",),
    ),
    Weakening(
        name="room that is gone is thought to be with others",
        patches=(
            ("        if not job.beside:\n", "        if False:\n"),
            (
                "            return memory_left_mib() < CROWDED_BELOW * job.limits.memory_mib\n",
                "            return True\n",
            ),
            (" and others_fill_disk(job.beside)\n", "\n"),
        ),
        breaks=("disk_out_of_sight", "memory_out_of_sight"),
    ),
    Weakening(
        name="the zygote has only children of its own making",
        patches=(
            (
                "        if pid not in keys:\n            continue",
                "        if pid not in keys:\n            raise KeyError(pid)",
            ),
        ),
        alone=True,
        breaks=("children_of_the_runner",),
    ),
    Weakening(
        name="a session's Python speaks for itself",
        patches=(
            (
                "LookupError, ArithmeticError, RecursionError):\n            return  # of foreign",
                "LookupError):\n            return  # of foreign",
            ),
        ),
        breaks=("malformed_messages",),
    ),
    Weakening(
        name="a session may have any number of connections",
        patches=(("MAX_CONNECTIONS, LOOK_EVERY_S = 20_000,", "MAX_CONNECTIONS, LOOK_EVERY_S = 1 << 30,"),),
        breaks=("waiting_in_a_session",),
    ),
    Weakening(
        name="a session's files stand still, and fit",
        patches=(
            (
                "except (FileNotFoundError, PermissionError):\n                        continue  # gone",
                "except ValueError:\n                        continue  # gone",
            ),
            (" or num_chars > MAX_CHARS", ""),
            (
                '        if "fork_error" in end:\n            header',
                "        if not lines or job.reason is not None:\n            header",
            ),
        ),
        alone=True,
        breaks=("restless_session", "long_paths"),
    ),
)
