"""Files of the host and of the image: secrets to read, places to write, devices, rights."""

# ruff: noqa: E501

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import refused
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=12.0, cpu_s=5, memory_mib=256)

_program = partial(Snippet, category=Category.SURFACE, limits=LIMITS)

# fmt: off
SNIPPETS = (
    _program("secrets_of_the_image", "reads password hashes and what root keeps", refused(2), """
        for path in ("/etc/shadow", "/etc/gshadow", "/root", "/etc/ssh/ssh_host_rsa_key", "/etc/sudoers"):
            try:
                found = os.listdir(path) if os.path.isdir(path) else open(path).read()
            except OSError as error:
                held(path, errno.errorcode[error.errno])
            else:
                held(path, "empty") if not found else escaped(path, repr(found[:40]))
    """),
    _program("process_one", "reads memory, environment, folders and descriptors of PID 1 and of its parent",
        refused(8), """
        me = os.getuid()
        for pid in sorted({1, os.getppid() or 1}):
            for name in ("environ", "mem", "maps", "auxv", "syscall", "stack", "io", "pagemap"):
                path = "/proc/%d/%s" % (pid, name)
                attempt(path, lambda: open(path, "rb").read(4096))
            for name in ("root", "cwd", "exe"):
                path = "/proc/%d/%s" % (pid, name)
                attempt(path, lambda: os.readlink(path))
            attempt("fd of %d" % pid, lambda: os.listdir("/proc/%d/fd" % pid))
    """),
    _program("host_file", "reads a file that lies on the host, by every way to another root", refused(5), """
        path = @SECRET_PATH@
        roots = ["", "/proc/1/root", "/proc/%d/root" % (os.getppid() or 1), "/proc/1/cwd", "/host", "/mnt", "/rootfs",
                 "/var/run/host", "/proc/self/root/..", "/../../../.."]
        for root in roots:
            attempt(root + "/...", lambda: open(root + path).read())
    """),
    _program("control_sockets", "connects to the sockets of container engines and of the host's services",
        refused(6), """
        import glob, socket
        paths = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
                 "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/udev/control", "/dev/log"]
        for path in paths + glob.glob("/run/*.sock") + glob.glob("/run/*/*.sock"):
            attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
    """),
    _program("memory_of_the_machine", "reads the memory and the log of the kernel", refused(5), """
        for path in ("/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/proc/vmallocinfo"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                data = os.read(fd, 16)
            except OSError as error:
                held(path, errno.errorcode[error.errno])
            else:
                escaped(path, "%d bytes" % len(data)) if data else held(path, "empty")
        call("syslog", (103, 116), 3, 0, 0)
    """),
    _program("devices", "opens disks and other devices, and makes some of its own", refused(8), """
        import stat
        usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
        found = []
        for folder, _, names in os.walk("/dev"):
            for name in names:
                path = os.path.join(folder, name)
                mode = os.lstat(path).st_mode
                if (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and name not in usual and folder != "/dev/pts":
                    found.append(path)
        for path in found + ["/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control",
                             "/dev/console", "/dev/vhost-vsock", "/dev/nvidiactl"]:
            attempt(path, lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        for kind, number in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFCHR, os.makedev(1, 11))):
            attempt("mknod", lambda: os.mknod("device-%d" % number, kind | 0o666, number))
    """),
    _program("read_only_root", "writes everywhere outside of its own folders that a user may enter", refused(20), """
        mine = tuple(map(os.path.realpath, ("/tmp", "/work", "/dev/shm", os.getcwd())))
        for folder, folders, _ in os.walk("/"):
            if folder in ("/proc", "/sys") or folder in mine or folder.count("/") > 3 or folder == "/dev/pts":
                folders[:] = []
                continue
            attempt(folder, lambda: os.close(os.open(folder + "/planted", os.O_CREAT | os.O_RDWR)))
    """),
    _program("shared_programs", "changes the Python and the programs that the next call will run", refused(5), """
        import json, site, sys
        places = [json.__file__, sys.executable, os.__file__, "/etc/passwd", "/etc/ld.so.preload", "/usr/bin/env"]
        for path in places:
            attempt(path, lambda: os.open(path, os.O_WRONLY))
        for path in sys.path + site.getsitepackages():
            if os.path.isdir(path):
                attempt(path, lambda: open(path + "/sitecustomize.py", "a").close())
        attempt("chmod", lambda: os.chmod("/usr/bin/env", 0o777))
        attempt("utime", lambda: os.utime("/etc/passwd"))
    """),
    _program("kernel_settings",
        "opens settings of the kernel for writing, such as what runs when a program crashes", refused(8), """
        for path in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/vm/drop_caches", "sys/vm/overcommit_memory",
                     "sys/fs/file-max", "sys/kernel/hostname", "sys/net/ipv4/ip_forward", "sys/kernel/ns_last_pid",
                     "sysrq-trigger", "irq/default_smp_affinity", "mtrr", "acpi/wakeup"):
            attempt(path, lambda: os.open("/proc/" + path, os.O_WRONLY))
    """),
    _program("kernel_objects", "opens /sys for writing: power, devices, firmware, debugging", refused(4), """
        paths = ["/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/uevent_helper",
                 "/sys/kernel/debug", "/sys/firmware/efi", "/sys/module/kernel/parameters/panic", "/sys/class/mem/null/uevent",
                 "/sys/kernel/profiling", "/sys/devices/system/cpu/online"]
        for path in paths:
            attempt(path, lambda: os.open(path + "/x" if os.path.isdir(path) else path, os.O_WRONLY))
    """),
    _program("control_groups", "changes its own limits in the control group files, and makes a group of its own",
        refused(3), """
        opened = 0
        for folder, folders, names in os.walk("/sys/fs/cgroup"):
            if folder.count("/") > 6:
                folders[:] = []
            for name in names:
                path = os.path.join(folder, name)
                if name in ("cgroup.procs", "tasks", "memory.max", "memory.limit_in_bytes", "pids.max", "release_agent", "cpu.max",
                            "cgroup.kill", "notify_on_release", "cgroup.subtree_control"):
                    opened += 1
                    attempt(path, lambda: os.open(path, os.O_WRONLY))
        for path in ("/sys/fs/cgroup/mine", "/sys/fs/cgroup/memory/mine"):
            attempt("mkdir", lambda: (os.mkdir(path), os.rmdir(path)))
        held("files", opened)
    """),
    _program("setuid_programs", "runs every program that would make it root", refused(3), """
        import subprocess, time
        paths = ["/usr/bin/" + name for name in ("su", "chsh", "newgrp", "passwd", "gpasswd", "mount", "umount", "chfn", "sudo")]
        for path in paths:
            if not os.path.exists(path) or not os.stat(path).st_mode & 0o4000:
                held(path, "not there")
                continue
            try:
                child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
            except OSError as error:
                held(path, errno.errorcode[error.errno])
                continue
            users, end = set(), time.monotonic() + 0.12
            while time.monotonic() < end and child.poll() is None:
                try:
                    for line in open("/proc/%d/status" % child.pid):
                        if line.startswith("Uid:"):
                            users.update(line.split()[1:])
                except OSError:
                    break
            child.kill()
            child.communicate()
            if "0" in users and os.getuid() != 0:
                escaped(path, "ran as root")
            else:
                held(path, sorted(users))
    """),
    _program("own_setuid_file", "makes a program of its own that runs as root, or as any other user", refused(4), """
        open("tool", "wb").write(open("/bin/true", "rb").read())
        os.chmod("tool", 0o6755)
        attempt("chown", lambda: os.chown("tool", 0, 0))
        attempt("give away", lambda: os.chown("tool", os.getuid() + 1, -1))
        attempt("file capability", lambda: os.setxattr("tool", "security.capability", bytes.fromhex("01000002ffffffff000000000000000000000000")))
        attempt("trusted attribute", lambda: os.setxattr("tool", "trusted.x", b"1"))
    """),
    _program("other_users", "becomes root, another user, or a member of another group", refused(8), """
        me = os.getuid()
        if me == 0:
            escaped("user", "is root")
        attempt("setuid", lambda: os.setuid(0))
        attempt("seteuid", lambda: os.seteuid(0))
        attempt("setresuid", lambda: os.setresuid(-1, -1, 0))
        attempt("neighbour", lambda: os.setuid(me + 1))
        attempt("runner", lambda: os.setuid(65000))
        attempt("setgid", lambda: os.setgid(0))
        attempt("setgroups", lambda: os.setgroups([0]))
        attempt("initgroups", lambda: os.initgroups("root", 0))
    """),
    _program("no_rights", "looks for a capability it has, can get or can pass on, and for a way past no_new_privs",
        refused(5), """
        import ctypes
        status = {line.split(":")[0]: line.split(":")[1].strip() for line in open("/proc/self/status")}
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            (held if int(status[name], 16) == 0 else escaped)(name, status[name])
        (held if status["NoNewPrivs"] == "1" else escaped)("NoNewPrivs", status["NoNewPrivs"])
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for what, args in (("ambient", (47, 2, 21, 0, 0)), ("keep caps", (8, 1, 0, 0, 0)), ("bounding set", (24, 21, 0, 0, 0))):
            if what == "keep caps":
                prctl(*args)
                attempt("keep caps", lambda: os.setuid(0))
            elif prctl(*args) == 0:
                escaped(what, "allowed")
            else:
                held(what, errno.errorcode[ctypes.get_errno()])
    """),
    _program("seccomp_filter", "looks for a process without a system call filter, and takes its own off",
        refused(2), claim="seccomp", code="""
        import ctypes
        status = {line.split(":")[0]: line.split(":")[1].strip() for line in open("/proc/self/status")}
        (held if status["Seccomp"] == "2" else escaped)("Seccomp", status["Seccomp"])
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(22, 0, 0, 0, 0) == 0:
            escaped("filter off", "allowed")
        else:
            held("filter off", errno.errorcode[ctypes.get_errno()])
    """),
    _program("terminals", "types into the terminal of whoever started the sandbox", refused(2), """
        import fcntl, glob
        attempt("/dev/tty", lambda: os.open("/dev/tty", os.O_RDWR))
        for path in glob.glob("/dev/pts/[0-9]*") + ["/dev/tty0", "/dev/tty1", "/dev/console"]:
            attempt(path, lambda: os.open(path, os.O_RDWR | os.O_NOCTTY))
        for fd in (0, 1, 2):
            attempt("TIOCSTI", lambda: fcntl.ioctl(fd, 0x5412, b"x"))
    """),
    _program("core_dumps", "crashes, so that the host handles a dump of its memory", refused(2), """
        import resource, signal
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # at 1 nothing is run for a crash, at 0 it may be
        now = resource.getrlimit(resource.RLIMIT_CORE)
        piped = open("/proc/sys/kernel/core_pattern").read().startswith("|")
        (held if hard <= 1 and (now == (1, 1) or not piped) else escaped)("core limit", (hard, now))
        pid = os.fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGABRT)
        status = os.waitpid(pid, 0)[1]
        (escaped if os.WCOREDUMP(status) else held)("core dump", status)
        for path in [name for name in os.listdir(".") if name.startswith("core")]:
            escaped("core file", path)
    """),
    _program("environment_secrets", "reads keys and tokens from its environment", refused(1), """
        words = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AWS_", "AZURE", "GOOGLE", "GITHUB", "HF_", "WANDB", "SSH_")
        found = [name for name in os.environ if any(word in name.upper() for word in words)]
        for name in found:
            escaped(name)
        held("environment", "%d names" % len(os.environ))
    """),
)
