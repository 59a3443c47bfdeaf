"""More room on disk, more names and larger files than a call may have."""

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import left, reached, refused
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=12.0, cpu_s=5, memory_mib=256, file_mib=4)
MOST_MIB, MOST_FILES = 128, 8192  # for all of a sandbox: no backend of ours gives more

_program = partial(Snippet, category=Category.RESOURCES, claim="disk_limit", limits=LIMITS)

# fmt: off
SNIPPETS = (
    _program("full_disk", "files of 4 MiB in every folder that takes them, up to 160 MiB", reached(MOST_MIB), """
        import os
        total, number = 0, 0
        for folder in (os.getcwd(), "/tmp", "/work", "/var/tmp", "/dev/shm", "/run/lock"):
            try:
                while total < 160:
                    with open("%s/fill-%d" % (folder, number), "wb", buffering=0) as file:
                        number += 1
                        for _ in range(4):
                            if file.write(bytes(1 << 20)) < 1 << 20:
                                raise OSError
                            total += 1
            except OSError:
                pass
        say("reached", "MiB", total)
    """),
    _program("all_inodes", "9000 empty files", reached(MOST_FILES), """
        count = 0
        for folder in (os.getcwd(), "/tmp"):
            try:
                while count < 9000:
                    os.mknod("%s/empty-%d" % (folder, count))
                    count += 1
            except OSError:
                pass
        say("reached", "files", count)
    """),
    _program("one_large_file", "one file that grows past 4 MiB", reached(4), """
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        total = 0
        with open("large", "wb", buffering=0) as file:
            try:
                while total < 12:
                    if file.write(bytes(1 << 20)) < 1 << 20:
                        break
                    total += 1
            except OSError:
                pass
        say("reached", "MiB", total)
    """),
    _program("sparse_file", "a file of a terabyte that holds one byte, and one that is reserved", refused(3), """
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        fd = os.open("sparse", os.O_CREAT | os.O_RDWR)
        attempt("truncate", lambda: os.ftruncate(fd, 1 << 40))
        attempt("write far out", lambda: os.pwrite(fd, b"x", 1 << 40))
        attempt("reserve", lambda: os.posix_fallocate(fd, 0, 6 << 20))
    """),
    _program("deep_tree", "folders 800 deep, so that no path reaches the last", left("tree"), claim="isolated",
        code="""
        for folder in (os.getcwd(), "/tmp"):
            os.chdir(folder)
            for _ in range(400):
                os.mkdir("d" * 100)
                os.chdir("d" * 100)
            open("last", "w").close()
        say("made", "tree")
    """),
    _program("unlinked_files", "a daemon keeps files open that have no name any more", left("unlinked"),
        claim="isolated", code="""
        import time
        read, write = os.pipe()
        if not os.fork():
            os.setsid()
            for number in range(8):
                fd = os.open("gone", os.O_CREAT | os.O_RDWR)
                os.write(fd, bytes(1 << 20))
                os.unlink("gone")
            os.close(1), os.close(2)
            os.write(write, b"x")
            time.sleep(5)
            os._exit(0)
        os.read(read, 1)
        say("made", "unlinked")
    """),
    _program("hard_links", "2000 names for one file", left("links"), claim="isolated", code="""
        open("/tmp/one", "w").close()
        made = 0
        try:
            for number in range(2000):
                os.link("/tmp/one", "/tmp/link-%d" % number)
                made += 1
        except OSError:
            pass
        if made > 100:
            say("made", "links", made)
    """),
    _program("wide_folder", "a folder with hundreds of names of 255 bytes", left("names"), claim="isolated", code="""
        os.mkdir("/tmp/wide")
        made = 0
        try:
            for number in range(900):
                open("/tmp/wide/" + str(number).rjust(255, "w"), "w").close()
                made += 1
        except OSError:
            pass
        if made > 100:
            say("made", "names", made)
    """),
)
