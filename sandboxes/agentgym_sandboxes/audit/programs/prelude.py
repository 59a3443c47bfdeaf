"""What every hostile program begins with: functions that print its evidence, which the checks read."""

from __future__ import annotations

_PRELUDE = '''\
import errno, os

def say(kind, what, detail=""):
    """One line of evidence, at once and whole, so that it outlives a kill."""
    os.write(1, ("%s: %s: %s\\n" % (kind, what, detail)).encode("utf-8", "replace"))

def held(what, detail=""):
    say("held", what, detail)

def escaped(what, detail=""):
    say("escaped", what, detail)

def attempt(what, action):
    """Held when the kernel refuses it, escaped when it works."""
    try:
        got = action()
    except OSError as error:
        held(what, errno.errorcode.get(error.errno, str(error.errno)))
    else:
        escaped(what, repr(got)[:80])

def call(what, number, *args, held_by=("EPERM", "EACCES", "ENOSYS")):
    """A system call by number: (x86_64, aarch64), or one for all. Any other error means that the kernel ran it."""
    try:
        import ctypes
    except ImportError:
        return say("unsupported", what, "no ctypes")
    if isinstance(number, tuple):
        number = dict(zip(("x86_64", "aarch64"), number)).get(os.uname().machine)
    if number is None:
        return say("unsupported", what, "not on this machine")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    converted = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    got = syscall(ctypes.c_long(number), *converted)
    name = errno.errorcode.get(ctypes.get_errno(), "?")
    if got == -1 and name in held_by:
        held(what, name)
    else:
        escaped(what, "returned %d %s" % (got, name if got == -1 else ""))

'''


def program(code: str) -> str:
    """A whole program from a snippet's code."""
    return _PRELUDE + code
