"""System calls that no program needs, called with arguments that do no harm where they are allowed.

Numbers: (x86_64, aarch64), or one for both.
"""

# ruff: noqa: E501

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import refused
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=12.0, cpu_s=5, memory_mib=256)


_program = partial(Snippet, category=Category.SURFACE, claim="seccomp", limits=LIMITS)

# fmt: off
SNIPPETS = (
    _program("unshare", "a user namespace of its own, where it is root, and every other kind of namespace",
        refused(8), """
        for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("pid", 0x20000000), ("network", 0x40000000),
                           ("ipc", 0x8000000), ("uts", 0x4000000), ("cgroup", 0x2000000), ("time", 0x80)):
            pid = os.fork()
            if not pid:
                call("unshare " + name, (272, 97), flag)
                os._exit(0)
            os.waitpid(pid, 0)
    """),
    _program("clone_into_namespace", "a child in a new user namespace, by clone and by clone3", refused(2), """
        import ctypes, signal
        SIGCHLD = 17
        me = os.getpid()
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
        got = syscall(ctypes.c_long(number), ctypes.c_long(0x10000000 | SIGCHLD), None, None, None, None)
        if os.getpid() != me or got == 0:
            os._exit(0)
        escaped("clone", got) if got > 0 else held("clone", errno.errorcode[ctypes.get_errno()])
        call("clone3", 435, 0, 0)
    """),
    _program("join_namespaces", "the namespaces of PID 1", refused(3), claim="isolated", code="""
        for name in ("mnt", "pid", "net", "user", "ipc", "uts"):
            attempt("open " + name, lambda: os.open("/proc/1/ns/" + name, os.O_RDONLY))
        call("setns", (308, 268), -1, 0)
    """),
    _program("mounts", "mounts, unmounts and moves file systems, by old calls and new", refused(7), """
        call("mount", (165, 40), 0, 0, 0, 0, 0)
        call("umount2", (166, 39), 0, 0)
        call("open_tree", 428, -100, b"/", 0)
        call("open_tree clone", 428, -100, b"/", 1)
        call("move_mount", 429, -1, 0, -1, 0, 0)
        call("fsopen", 430, 0, 0)
        call("fsmount", 432, -1, 0, 0)
        call("fspick", 433, -100, b"/", 0)
        call("mount_setattr", 442, -1, 0, 0, 0, 0)
    """),
    _program("other_root", "another root folder, by chroot and by pivot_root", refused(2), claim="isolated", code="""
        attempt("chroot", lambda: os.chroot("/tmp"))
        call("pivot_root", (155, 41), b"/none", b"/none")
    """),
    _program("key_rings", "keys in the kernel's key rings, which are not of any container", refused(3), """
        call("add_key", (248, 217), b"user", b"bait", b"x", 1, -3)
        call("request_key", (249, 218), b"user", b"bait", 0, -3)
        call("keyctl", (250, 219), 0, -3, 0)
    """),
    _program("kernel_programs", "programs that run in the kernel: bpf and performance events", refused(2), """
        import ctypes
        block = ctypes.create_string_buffer(256)
        call("bpf", (321, 280), 0, 0, 0)
        call("perf_event_open", (298, 241), 0, 0, -1, -1, 0)
    """),
    _program("page_faults", "page faults handled by itself, which makes races in the kernel easy to win",
        refused(1), """
        call("userfaultfd", (323, 282), 1)
    """),
    _program("io_uring", "a queue of system calls that a filter does not see", refused(3), """
        call("io_uring_setup", 425, 1, 0)
        call("io_uring_enter", 426, -1, 0, 0, 0, 0, 0)
        call("io_uring_register", 427, -1, 0, 0, 0)
    """),
    _program("debugging", "traces itself and its child, and reads memory by number", refused(4), """
        import ctypes
        call("PTRACE_TRACEME", (101, 117), 0, 0, 0, 0)
        block = ctypes.create_string_buffer(16)
        vector = (ctypes.c_ulong * 2)(ctypes.addressof(block), 16)
        call("process_vm_readv", (310, 270), os.getpid(), vector, 1, vector, 1, 0)
        call("process_vm_writev", (311, 271), os.getpid(), vector, 1, vector, 1, 0)
        call("kcmp", (312, 272), os.getpid(), os.getpid(), 0, 0, 0)
        call("process_madvise", 440, -1, 0, 0, 0, 0)
    """),
    _program("other_kernel", "boots another kernel, or this one again", refused(3), claim="isolated", code="""
        call("kexec_load", (246, 104), 0, 1 << 20, 0, 0)
        call("kexec_file_load", (320, 294), -1, -1, 0, 0, 0)
        call("reboot", (169, 142), 0, 0, 0, 0)
    """),
    _program("kernel_modules", "loads and removes kernel modules", refused(3), claim="isolated", code="""
        call("init_module", (175, 105), 0, 0, 0)
        call("finit_module", (313, 273), -1, 0, 1 << 20)
        call("delete_module", (176, 106), b"no_such_module_here", 0o4000)
    """),
    _program("swap_and_accounting", "swap files, accounting and quotas of the host", refused(4), claim="isolated",
        code="""
        call("swapon", (167, 224), b"/no/such/file", 0)
        call("swapoff", (168, 225), b"/no/such/file")
        call("acct", (163, 89), b"/no/such/file")
        call("quotactl", (179, 60), 0x800001 << 8, b"/no/such", 0, 0)
    """),
    _program("clock_of_the_host", "sets the clock", refused(3), claim="isolated", code="""
        call("settimeofday", (164, 170), 1, 0, held_by=("EPERM", "ENOSYS"))
        call("clock_settime", (227, 112), 0, 1, held_by=("EPERM", "ENOSYS"))
        import ctypes
        timex = (ctypes.c_long * 64)()
        ctypes.cast(timex, ctypes.POINTER(ctypes.c_uint))[0] = 0x8000  # only a reading, but of the kind that sets
        ctypes.cast(timex, ctypes.POINTER(ctypes.c_uint))[0] = 0x4000  # a tick of 0 is refused with EINVAL where it gets through
        call("adjtimex", (159, 171), timex)
    """),
    _program("host_name", "renames the machine", refused(2), claim="isolated", code="""
        call("sethostname", (170, 161), b"taken", 5)
        call("setdomainname", (171, 162), b"taken", 5)
    """),
    _program("ports_of_the_machine", "input and output ports of the hardware", refused(2), claim="isolated", code="""
        call("iopl", (172, None), 3)
        call("ioperm", (173, None), 0x80, 1, 1)
    """),
    _program("files_by_handle", "opens files of the host by their number, past every folder", refused(2), """
        import ctypes
        block = ctypes.create_string_buffer(bytes([128, 0, 0, 0, 1, 0, 0, 0]), 136)
        mount_id = ctypes.c_int()
        call("name_to_handle_at", (303, 264), -100, b"/", block, ctypes.byref(mount_id), 0)
        call("open_by_handle_at", (304, 265), -100, block, 0)
    """),
    _program("watching_all_files", "hears of every access to every file, by fanotify", refused(1), """
        call("fanotify_init", (300, 262), 0x200, 0)
    """),
    _program("personality", "switches off address randomisation, and other ways of a process", refused(2), """
        call("personality", (135, 92), 0x0040000)
        call("personality read implies exec", (135, 92), 0x0400000)
    """),
    _program("secret_memory", "memory that not even the kernel can look into", refused(1), """
        call("memfd_secret", 447, 0)
    """),
    _program("memory_policy", "moves its pages, and those of others, between memory nodes", refused(3), """
        call("mbind", (237, 235), 0, 0, 0, 0, 0, 0)
        call("set_mempolicy", (238, 237), 0, 0, 0)
        call("migrate_pages", (256, 238), 0, 0, 0, 0)
        call("move_pages", (279, 239), 0, 0, 0, 0, 0, 0)
    """),
    _program("rarely_used_calls", "calls that hardly any program makes", refused(5), """
        for name, number in (("lookup_dcookie", (212, 18)), ("vmsplice", (278, 75)), ("nfsservctl", (180, 42)), ("uselib", (134, None)),
                             ("ustat", (136, None)), ("sysfs", (139, None)), ("vhangup", (153, 58)), ("_sysctl", (156, None)),
                             ("get_kernel_syms", (177, None))):
            call(name, number, -1, 0, 0, 0)
    """),
    _program("segment_tables", "local descriptor tables, which 64-bit programs do not need", refused(1), """
        import ctypes
        block = ctypes.create_string_buffer(64)
        call("modify_ldt", (154, None), 0, block, 64)
    """),
    _program("calls_of_32_bits", "gets to sockets of the virtual machine by the calls of 32-bit programs",
        refused(1), """
        import ctypes, mmap, struct
        if os.uname().machine != "x86_64":
            say("unsupported", "int 0x80", os.uname().machine)
        else:
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            # 32-bit arguments must lie below 4 GiB
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            low = libc.mmap(ctypes.c_void_p(0), ctypes.c_size_t(4096), 3, 0x22 | 0x40, -1, ctypes.c_long(0))
            ctypes.memmove(low, struct.pack("III", 40, 1, 0), 12)  # AF_VSOCK, SOCK_STREAM
            # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx; ret
            page.write(bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3"))
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(address)
            pid = os.fork()
            if not pid:
                got = run(102, 1, low)  # socketcall(SYS_SOCKET, ...)
                escaped("socketcall", got) if got >= 0 or got == -97 else held("socketcall", errno.errorcode.get(-got, got))
                got = run(359, 40, 1)  # socket
                escaped("socket", got) if got >= 0 or got == -97 else held("socket", errno.errorcode.get(-got, got))
                os._exit(0)
            if os.waitpid(pid, 0)[1]:
                held("int 0x80", "ended by a signal")
    """),
    _program("sockets_to_the_kernel", "netlink: routes, audit, events of devices", refused(3), """
        import socket
        for protocol in (0, 9, 15):
            attempt("AF_NETLINK %d" % protocol, lambda: socket.socket(16, socket.SOCK_RAW, protocol))
    """),
    _program("other_socket_families", "all other families of sockets, as the hypervisor's and the kernel's ciphers", refused(20), """
        import socket
        for family in range(3, 46):
            if family not in (10, 16, 17):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                    try:
                        socket.socket(family, kind)
                    except OSError as error:
                        if error.errno in (errno.EPERM, errno.EACCES):
                            held("family %d" % family, errno.errorcode[error.errno])
                        elif error.errno != errno.EAFNOSUPPORT:
                            escaped("family %d" % family, errno.errorcode[error.errno])
                        elif family == 45:
                            escaped("family 45", "the kernel was asked")
                    else:
                        escaped("family %d" % family, "opened")
    """),
    _program("raw_packets", "packets made by hand", refused(3), claim="isolated", code="""
        import socket
        attempt("raw IP", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
        attempt("raw IPv6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
        attempt("raw link", lambda: socket.socket(17, socket.SOCK_RAW, 0))
    """),
)
