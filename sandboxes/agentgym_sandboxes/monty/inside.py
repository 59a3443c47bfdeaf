"""The source that runs inside an interpreter, around a solution's own.

What leaves is one text, whatever the solution made of these names: a value would be built again outside, and there
a set takes hours when its elements collide, and a list that is in itself again and again takes all memory.
"""

from __future__ import annotations

from agentgym_sandboxes.agent.values import MAX_DEPTH

# Makes trees of the value codec. `odd` takes the name of a type that does not cross.
HELPERS = """
import base64 as __base64
import json as __json
__TAGS = {"list": "l", "tuple": "t", "set": "s", "frozenset": "z", "dict": "d"}
def __tree(value, depth, odd):
    kind = type(value).__name__
    if kind in ("str", "bool", "float", "NoneType"):
        return value
    if kind == "int":
        return value if -9223372036854775808 <= value < 9223372036854775808 else ["i", hex(value)]
    if kind in __TAGS:
        tree = [__TAGS[kind]]
        if depth >= {depth}:
            odd.append(kind + " nested more than {depth} deep")
        elif kind == "dict":
            for key, item in value.items():
                tree.append(__tree(key, depth + 1, odd))
                tree.append(__tree(item, depth + 1, odd))
                if odd:
                    break
        else:
            for item in value:
                tree.append(__tree(item, depth + 1, odd))
                if odd:
                    break
        return tree
    if kind == "bytes":
        return ["b", __base64.b64encode(value).decode()]
    if kind == "complex":
        return ["c", value.real, value.imag]
    odd.append(kind)
    return None
def __tell(value, as_list):
    odd = []
    tree = __tree(value, 0, odd)
    if as_list and odd and odd[0].endswith("iterator"):
        odd = []
        tree = __tree(list(value), 0, odd)
    if odd and odd[0] == "range" and type(value).__name__ == "range":
        return ["range", repr(value)]
    return ["n", odd[0]] if odd else ["r", tree]
""".replace("{depth}", str(MAX_DEPTH))

# All calls in one feed.
BATCH = (
    HELPERS.replace("{", "{{").replace("}", "}}")
    + """
{load}  # an error when the solution does not define it
__answers = []
for __args, __kwargs, __as_list, __tell_args in __calls:
    try:
        __told = __tell({call}, __as_list)
        __answers.append(__told + [__tell(__args, False)] if __tell_args else __told)
    except BaseException as __error:
        __answers.append(["x", type(__error).__name__, str(__error)])
f"{{__json.dumps(__answers, ensure_ascii=False)}}"
"""
)

# One call: what it returned, and its arguments after it.
CALL = """__told = __tell({call}, __as_list)
f"{{__json.dumps(__told + [__tell(__args, False)], ensure_ascii=False)}}"
"""
ARGUMENTS = 'f"{__json.dumps(__tell(__args, False), ensure_ascii=False)}"'


def call_source(entry: str) -> str:
    """The call of an entry; `Solution.method` makes an instance for every call."""
    owner, dot, method = entry.rpartition(".")
    callee = f"{owner}().{method}" if dot else entry
    return f"{callee}(*__args, **__kwargs)"
