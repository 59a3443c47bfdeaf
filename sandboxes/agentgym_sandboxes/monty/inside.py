"""The source that runs inside an interpreter, around a solution's own."""

from __future__ import annotations

from agentgym_sandboxes.docker.agent.values import MAX_DEPTH

# The types are read inside: a value that leaves may change its type (a range becomes text).
HELPERS = """
def __odd_type(value, depth):
    kind = type(value).__name__
    if kind in ("int", "bool", "float", "str", "bytes", "NoneType", "complex"):
        return ""
    if depth >= {depth} and kind in ("list", "tuple", "set", "frozenset", "dict"):
        return kind + " nested more than {depth} deep"
    if kind in ("list", "tuple", "set", "frozenset"):
        for item in value:
            odd = __odd_type(item, depth + 1)
            if odd:
                return odd
        return ""
    if kind == "dict":
        for key, item in value.items():
            odd = __odd_type(key, depth + 1) or __odd_type(item, depth + 1)
            if odd:
                return odd
        return ""
    return kind
def __tell(value, as_list):
    odd = __odd_type(value, 0)
    if as_list and odd.endswith("iterator"):
        value = list(value)
        odd = __odd_type(value, 0)
    if odd == "range" and type(value).__name__ == "range":
        return ("range", repr(value))
    return ("n", odd) if odd else ("r", value)
""".replace("{depth}", str(MAX_DEPTH))

# All calls in one feed.
BATCH = (
    HELPERS
    + """
{load}  # an error when the solution does not define it
__answers = []
for __args, __kwargs, __as_list, __tell_args in __calls:
    try:
        __told = __tell({call}, __as_list)
        __left = __tell(__args, False) if __tell_args else None
        __answers.append((__told[0], __told[1], __left))
    except BaseException as __error:
        __answers.append(("x", type(__error).__name__, str(__error)))
__answers
"""
)

# One call: what it returned, and its arguments after it.
CALL = """__told = __tell({call}, __as_list)
(__told, __tell(__args, False))
"""


def call_source(entry: str) -> str:
    """The call of an entry; `Solution.method` makes an instance for every call."""
    owner, dot, method = entry.rpartition(".")
    callee = f"{owner}().{method}" if dot else entry
    return f"{callee}(*__args, **__kwargs)"
