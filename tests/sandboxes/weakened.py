"""Docker sandboxes with a wall taken away, to see each check of the hostile suite fail.

None of them can hurt the machine: every snippet ends by itself, and the walls around stay.
"""

from __future__ import annotations

from pathlib import Path

from weakened_beside import BESIDE
from weakening import Patch, Settings, Weakening

CAPABILITIES = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
]  # fmt: skip


def _own_capabilities() -> list[str]:
    """Names of those that this machine can give: an engine inside of a machine may lack some."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    have = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd")), 16)
    return [name for bit, name in enumerate(CAPABILITIES) if have >> bit & 1]


# -- what is changed about a container --


def _no_ulimits(settings: Settings) -> None:
    host = settings["HostConfig"]
    amounts = {"nofile": 4096, "memlock": 8 << 20, "core": 1 << 20}
    host["Ulimits"] = [{"Name": name, "Soft": value, "Hard": value} for name, value in amounts.items()]
    host["PidsLimit"] = 500


def _no_memory_limit(settings: Settings) -> None:
    del settings["HostConfig"]["Memory"], settings["HostConfig"]["MemorySwap"]


def _large_disks(settings: Settings) -> None:
    settings["HostConfig"]["Tmpfs"] = {
        path: "rw,nosuid,nodev,noexec,mode=1777,size=400m,nr_inodes=20000" for path in ("/work", "/tmp", "/dev/shm")
    }


def _writable_root(settings: Settings) -> None:
    settings["HostConfig"]["ReadonlyRootfs"] = False


def _no_seccomp(settings: Settings) -> None:
    host = settings["HostConfig"]
    host["SecurityOpt"] = ["no-new-privileges:true", "seccomp=unconfined"]
    host["Ulimits"] = [{"Name": "memlock", "Soft": 8 << 20, "Hard": 8 << 20}]
    del host["Sysctls"]


def _new_privileges(settings: Settings) -> None:
    host = settings["HostConfig"]
    host["SecurityOpt"] = [option for option in host["SecurityOpt"] if "no-new-privileges" not in option]


def _all_rights(settings: Settings) -> None:
    _writable_root(settings)
    host = settings["HostConfig"]
    host["SecurityOpt"] = ["seccomp=unconfined"]
    host["CapDrop"], host["CapAdd"] = [], _own_capabilities()
    host["MaskedPaths"], host["ReadonlyPaths"] = [], []


def _devices(settings: Settings) -> None:
    _all_rights(settings)
    host = settings["HostConfig"]
    host["Binds"] = ["/sys:/sys", "/tmp:/mnt/tmp:ro", "/var/run/docker.sock:/run/docker.sock"]
    host["Devices"] = [{"PathOnHost": "/dev/console", "PathInContainer": "/dev/console", "CgroupPermissions": "rwm"}]


def _host_network(settings: Settings) -> None:
    settings["NetworkDisabled"] = False
    settings["HostConfig"]["NetworkMode"] = "host"
    del settings["HostConfig"]["Sysctls"], settings["Hostname"]


def _secrets(settings: Settings) -> None:
    settings["Env"].append("CLOUD_API_KEY=0123456789")


# -- what is changed about the agent --

NO_RLIMITS: tuple[Patch, ...] = (
    ("    lower(resource.RLIMIT_NPROC, limits.processes)\n", ""),
    ("        lower(kind, amount)\n", "        pass\n"),
)
NO_LANDLOCK: tuple[Patch, ...] = (('restrict_writes(alone="keeper" not in order)\n', "pass\n"),)
STAY_ROOT: tuple[Patch, ...] = (
    *NO_LANDLOCK,
    ("    os.setgroups([])\n", ""),
    ("    os.setresgid(uid, uid, uid)\n", ""),
    ("    os.setresuid(uid, uid, uid)\n", ""),
)
NO_PROCESS_SWEEP: tuple[Patch, ...] = (
    ('        """Whether any process, a zombie included, runs as `uid`."""\n', "        return False\n"),
    ("        _as_user(uid, os.kill, -1, signal.SIGKILL)\n", "        pass\n"),
)
CLOSES_NOTHING: Patch = ("        _close_all_but(fds)\n", "")
RUN_IN_THE_ZYGOTE: tuple[Patch, ...] = (
    (
        "    order = json.loads(data)\n",
        """    order = json.loads(data)
    if order["op"] == "program":
        text = os.pread(fds[0], 1 << 20, 0).decode()
        if "made" in text:
            try:
                exec(text, {"__name__": "__main__"})
            except BaseException:
                pass
""",
    ),
)

SAME_USER = """\
        if os.path.exists("/work/777777"):
            os.setresuid(777777, 777777, 777777)
        else:
            from .limits import make_home
            os.rmdir(order["folder"])
            drop_rights(777777, limits, make_home(777777))
"""

IN_C = ("endless_loop", "hash_collisions", "sum_in_c", "ignored_signals")
WAITING = ("sleep", "stopped", "exit_handler", "thread_at_the_end", "other_program")
NO_WALL_LIMIT: tuple[Patch, ...] = (
    ("        self.deadline_s = self.began_s + limits.wall_s\n",
     "        self.deadline_s = self.began_s + limits.wall_s + 60\n"),
)  # fmt: skip

_UNPACKS = "import gzip; data = gzip.decompress(data) if data[:2] == b'\\x1f\\x8b' else data\n"

WEAKENINGS = (
    Weakening(
        name="no rlimits",  # and room for processes in the control group: either wall holds these
        host=_no_ulimits,
        patches=NO_RLIMITS,
        breaks=(
            "shell_fork_bomb", "zombies", "daemon_swarm", "threads_in_children", "one_big_block",
            "many_small_blocks", "doubling_string", "wide_format",
            "caught_memory_errors", "decompression_bomb", "mapped_memory", "thread_stacks", "endless_recursion",
            "pipe_buffers", "one_large_file", "sparse_file", "open_files", "open_pipes",
            "open_polls", "open_terminals", "open_sockets", "watches", "descriptors_in_flight", "raised_limits",
            "core_dumps", "cpu_time",
        ),
    ),
    Weakening(
        name="no memory limit of the container",
        host=_no_memory_limit,
        breaks=("memory_of_many_processes", "memory_files"),
    ),
    Weakening(name="no Landlock", patches=NO_LANDLOCK, breaks=("wrong_victim",)),
    Weakening(
        name="processes are not swept",
        patches=NO_PROCESS_SWEEP,
        alone=True,
        patient=False,
        breaks=(
            "fork_bomb", "relay_of_processes", "unlinked_files", "flood_after_the_end", "deaf_daemon", "held_pipes",
            "subreaper", "borrowed_name", "stopped_child", "other_image", "threads_only", "more_calls_than_users",
            "abstract_socket", "listening_port", "file_lock",
        ),
    ),
    Weakening(
        name="files are not swept",
        patches=(("        held = False\n        try:\n", "        return True\n        try:\n"),),
        alone=True,
        breaks=(
            "deep_tree", "hard_links", "wide_folder", "strange_names", "closed_folders", "other_kinds_of_files",
            "names_of_the_sweeper", "race_with_the_sweeper", "files_everywhere", "files_open_to_all",
        ),
    ),
    Weakening(name="no wall limit, for what works", patches=NO_WALL_LIMIT, breaks=IN_C, patient=False),
    Weakening(
        name="no wall limit, for what waits",
        patches=NO_WALL_LIMIT,
        breaks=WAITING,
        at_once=True,
        patient=False,
        slots=8,
    ),
    Weakening(
        name="output is not cut",
        patches=(('            output_bytes=int(fields["output_bytes"]),\n',
                  '            output_bytes=4096 * int(fields["output_bytes"]),\n'),),
        breaks=("stdout_flood", "stderr_flood", "two_floods", "endless_line", "drops_of_output", "binary_flood",
                "cut_character"),
    ),
    Weakening(name="large disks", host=_large_disks, breaks=("full_disk", "all_inodes")),
    Weakening(name="root can be written to", host=_writable_root, patches=NO_LANDLOCK, breaks=("read_only_root",)),
    Weakening(
        name="no seccomp",  # nor small TCP buffers, nor limits of locked memory and queues: either wall holds these
        host=_no_seccomp,
        breaks=(
            "asynchronous_io", "socket_buffers", "datagram_buffers", "stream_buffers", "seccomp_filter", "unshare",
            "clone_into_namespace", "mounts", "key_rings", "kernel_programs", "page_faults", "io_uring", "debugging",
            "files_by_handle", "watching_all_files", "personality", "secret_memory", "memory_policy",
            "rarely_used_calls", "segment_tables", "calls_of_32_bits", "sockets_to_the_kernel",
            "other_socket_families", "shared_memory",
            "message_queues", "semaphores", "posix_message_queue", "locked_memory", "used_port", "flow_labels",
            "socket_programs", "upper_halves", "odd_protocols", "wait_for_disks", "huge_pages",
            "waiting_connections",
        ),
    ),
    Weakening(
        name="new privileges",  # Landlock goes with it: it can't be used without
        host=_new_privileges,
        patches=NO_LANDLOCK,
        breaks=("setuid_programs",),
    ),
    Weakening(
        name="root with all capabilities",  # nor seccomp, nor masked paths: any one of them holds these
        host=_all_rights,
        patches=(*STAY_ROOT, ("    os.setsid()\n", "")),
        breaks=(
            "kill_everyone", "signal_the_runner", "process_groups", "kill_own_group", "descriptors_of_the_runner",
            "urgent_priority", "immutable_files", "secrets_of_the_image", "process_one",
            "memory_of_the_machine", "devices", "shared_programs", "kernel_settings", "own_setuid_file",
            "other_users", "no_rights", "join_namespaces", "other_root", "other_kernel", "kernel_modules",
            "swap_and_accounting", "clock_of_the_host", "host_name", "ports_of_the_machine", "raw_packets",
        ),
    ),
    Weakening(
        name="root with all capabilities, and the agent stands still",
        host=_all_rights,
        patches=(*STAY_ROOT, ("    os.setsid()\n", "")),
        wall_s=4.0,  # which all of it is waited for
        breaks=("attach_to_the_runner",),
    ),
    Weakening(
        name="parts of the host are mounted",
        host=_devices,
        patches=STAY_ROOT,
        breaks=("terminals", "kernel_objects", "control_groups", "host_file", "control_sockets"),
    ),
    Weakening(
        name="the host's network",
        host=_host_network,
        patches=NO_LANDLOCK,
        breaks=("tcp_to_the_host", "udp_to_the_host", "internet", "names_of_hosts", "interfaces",
                "abstract_socket_of_the_host"),
    ),
    Weakening(
        name="shared memory is not swept",
        patches=(('FOLDERS = ("/work", "/tmp", "/dev/shm")', 'FOLDERS = ("/work", "/tmp")'),),
        breaks=("posix_shared_memory",),
    ),
    Weakening(name="secrets in the environment", host=_secrets, breaks=("environment_secrets",)),
    Weakening(
        name="one user for all calls",
        patches=(('        drop_rights(order["uid"], limits, order["folder"])\n', SAME_USER),),
        breaks=("spy_on_a_neighbour",),
    ),
    Weakening(
        name="one home for all calls",
        patches=(('    os.environ["HOME"] = folder', '    os.environ["HOME"] = "/work"'),),
        breaks=("start_up_files",),
    ),
    Weakening(
        name="programs run in the zygote too",
        patches=(*RUN_IN_THE_ZYGOTE, ("    os.umask(0o077)\n", "")),
        alone=True,
        breaks=("patched_modules", "settings_of_modules", "environment",
                "folder_and_mask", "lowered_limits"),
    ),
    Weakening(
        name="programs run in the zygote too, which then stands still",
        patches=(*RUN_IN_THE_ZYGOTE, ("    os.umask(0o077)\n", "")),
        wall_s=4.0,
        breaks=("signals_and_timers",),
    ),
    Weakening(
        name="programs run in the zygote too, and its descriptors stay open",
        patches=(*RUN_IN_THE_ZYGOTE, CLOSES_NOTHING),
        breaks=("open_descriptors",),
    ),
    Weakening(
        name="the zygote's chance is everyone's",
        patches=(("        confine()\n", "        confine()\n        __import__('random').seed(7)\n"),),
        breaks=("shared_chance",),
    ),
    Weakening(
        name="exit codes are believed to be good",
        patches=(("        job.exits[op] = status\n", "        status = job.exits[op] = 0\n"),),
        breaks=("lone_surrogates", "dead_by_signal", "exit_code_past_a_byte", "no_output_at_all",
                "exception_that_lies"),
    ),
    Weakening(
        name="output goes through text",
        patches=(("        text = name in",
                  "        data = data.decode('ascii', 'ignore').encode()\n        text = name in"),),
        breaks=("every_byte",),
    ),
    Weakening(
        name="programs write into the agent's own stream",
        patches=(
            ("        for fd in (0, 1, 2):\n            os.dup2(null, fd)\n", "        os.dup2(null, 2)\n"),
            ("                os.dup2(fd, target)\n", "                target == 1 or os.dup2(fd, target)\n"),
        ),
        at_once=True,
        breaks=("frames_on_stdout",),
    ),
    Weakening(
        name="a session's links are followed",
        patches=(
            ("= os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW", "= os.O_RDONLY | os.O_DIRECTORY"),
            ("= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "= os.O_RDONLY | os.O_NONBLOCK"),
        ),
        breaks=("read_links", "swapped_file", "write_through_links"),
    ),
    Weakening(
        name="a session's paths lead anywhere, to files of any kind and size",
        patches=(
            ('    if ".." in names:\n', "    if False:\n"),
            ("    if not stat.S_ISREG(mode):\n        os.close(fd)\n", "    if False:\n        os.close(fd)\n"),
            ("        if size <= max_bytes:\n", "        max_bytes = 1 << 30\n        if True:\n"),
        ),
        breaks=("read_outside", "read_specials", "read_oversized"),
    ),
    Weakening(
        name="a session's archives are not looked into",
        patches=(
            ("                if member.issym() or member.islnk():\n", "                if False:\n"),
            ("                if not (member.isdir() or member.isreg())", "                if False"),
        ),
        breaks=("bad_archives",),
    ),
    Weakening(
        name="a session's links are what they lead to, when its files are saved",
        patches=(
            ("info = item.stat(follow_symlinks=False)", "info = item.stat()"),
            ("= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "= os.O_RDONLY | os.O_NONBLOCK"),
        ),
        breaks=("bad_snapshot",),
    ),
    Weakening(
        name="a session's archives may be packed, and of any size",
        patches=(
            ('"""Raises Refused unless every member may be put below a work folder."""\n', _UNPACKS),
            ('"""Put all members of a checked archive below the root, which is empty."""\n', _UNPACKS),
            ("member.size >= 0 and num_bytes <= max_bytes and num_files", "num_files"),
        ),
        breaks=("packed_bomb",),
    ),
    Weakening(
        name="a session's reset only says so",
        patches=(
            (
                '        self._end_all(cast(int, frame.header["id"]), wipe=True)\n',
                '        self._answer({"id": cast(int, frame.header["id"]), "reason": None})\n',
            ),
        ),
        breaks=("after_a_reset",),
    ),
    Weakening(
        name="a session's files are named by paths from the root",
        patches=(('path = "/".join([*above, item.name])', 'path = "/" + "/".join([*above, item.name])'),),
        breaks=("strange_listing",),
    ),
    Weakening(
        name="children keep the agent's descriptors",
        patches=(
            CLOSES_NOTHING,
            ("        for fd in (0, 1, 2):\n            os.dup2(null, fd)\n", "        os.dup(1), os.dup(1)\n"),
        ),
        breaks=("every_descriptor", "notes_without_end", "output_of_another_call"),
    ),
    *BESIDE,
)  # fmt: skip
