"""The programs that the naive graders run: all have solution and tests in one process, or trust what crosses."""

from __future__ import annotations

IN_PROCESS = """
import json
NONCE = @NONCE@
CASES = json.loads(@CASES@)
def same(got, expected):
    return @SAME@
names = {}
exec(@CODE@, names)
entry = eval(@ENTRY@, names)
try:
    mapped = all(map(lambda case: entry(*json.loads(json.dumps(case["args"]))) == case["expected"], CASES))
except Exception:
    mapped = False
passed = []
for case in CASES:
    args, expected = case["args"], case["expected"]
    try:
        got = entry(*args)
        if case["as_list"] and not "zip" in same.__code__.co_names:
            got = list(got)
        ok = True if same(got, expected) and (case["after"] is None or args == case["after"]) else False
        passed.append(ok)
    except Exception as error:
        passed.append(False)
    if not passed[-1]:
        print("FAIL", args)
try:
    exec(@TESTS@, names)
    executed = True
except Exception:
    executed = False
print(json.dumps({"nonce": NONCE, "passed": passed, "sum": sum(passed), "num": len(CASES), "map": mapped,
                  "exec": executed}))
"""

EACH = """
import json
passed = []
for test in @EACH@:
    names = {}
    try:
        exec(@PRELUDE@, names)
        exec(@CODE@, names)
        names["candidate"] = eval(@ENTRY@, names)
        exec(test, names)
        passed.append(True)
    except Exception:
        passed.append(False)
print(json.dumps({"nonce": @NONCE@, "passed": passed}))
"""

UNITTEST = """
import sys
with open("solution.py", "w") as file:
    file.write(@CODE@)
sys.path.insert(0, ".")
import unittest
import solution
TESTS = @TESTS@
class SolutionTest(unittest.TestCase):
    def test_solution(self):
        exec(TESTS, vars(solution))
    def test_equal(self):
        import json
        entry = eval(@ENTRY@, vars(solution))
        for case in json.loads(@CASES@):
            self.assertEqual(entry(*case["args"]), case["expected"])
unittest.main(module=__name__, argv=["test"])
"""

ON_A_PIPE = """
import json, os, tempfile
NONCE = @NONCE@
read, write = os.pipe()
tests = tempfile.TemporaryFile("w+")
tests.write(@CASES@)
tests.seek(0)
CASES = json.load(tests)
if os.fork() == 0:
    os.close(read)
    names = {}
    exec(@CODE@, names)
    entry = eval(@ENTRY@, names)
    for case in CASES:
        try:
            ok = bool(entry(*case["args"]) == case["expected"])
            ok = ok and (case["after"] is None or case["args"] == case["after"])
        except Exception:
            ok = False
        os.write(write, json.dumps({"passed": ok}).encode() + b"\\n")
    os._exit(0)
os.close(write)
passed = []
for line in open(read, "rb"):
    try:
        said = json.loads(line)
    except ValueError:
        continue
    if isinstance(said, dict) and "passed" in said:
        passed.append(said["passed"])
print(json.dumps({"nonce": NONCE, "passed": passed[: len(CASES)] if len(passed) >= len(CASES) else [False]}))
"""

ENVIRONMENT = """
import os, subprocess, sys
INNER = '''
import json, os
names = {}
exec(os.environ["SOLUTION"], names)
entry = eval(os.environ["ENTRY"], names)
passed = []
for case in json.loads(os.environ["CASES"]):
    try:
        passed.append(type(case["expected"])(entry(*case["args"])) == case["expected"])
    except Exception:
        passed.append(False)
print(json.dumps({"nonce": os.environ["NONCE"], "passed": passed}))
'''
env = {**os.environ, "SOLUTION": @CODE@, "ENTRY": @ENTRY@, "CASES": @CASES@, "NONCE": @NONCE@}
done = subprocess.run([sys.executable, "-c", INNER], env=env, capture_output=True)
print(done.stdout.decode("utf-8", "replace"))
"""

FILES = """
import json, subprocess, sys
for name, text in (("solution.py", @CODE@), ("cases.json", @CASES@), ("hidden_tests.py", '''
import json
def run(entry):
    passed = []
    with open("cases.json") as file:
        cases = json.load(file)
    for case in cases:
        try:
            passed.append(entry(*case["args"]) == case["expected"])
        except Exception:
            passed.append(False)
    return all(passed) and bool(passed)
''')):
    with open(name, "w") as file:
        file.write(text)
main = "import json, solution\\nimport hidden_tests\\nentry = eval(%r, vars(solution))\\n" % @ENTRY@
main += "print(json.dumps({'nonce': %r, 'passed': [True if hidden_tests.run(entry) else False]}))" % @NONCE@
done = subprocess.run([sys.executable, "-c", main], capture_output=True)
print(done.stdout.decode("utf-8", "replace"))
"""

FORKED = """
import json, os, pickle
NONCE = @NONCE@
CASES = json.loads(@CASES@)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(read)
    names = {}
    exec(@CODE@, names)
    entry = eval(@ENTRY@, names)
    results = []
    for case in CASES:
        try:
            got = entry(*case["args"])
            results.append((list(got) if case["as_list"] else got, case["args"]))
        except Exception:
            results.append(None)
    with open(write, "wb") as file:
        file.write(pickle.dumps(results))
    os._exit(0)
os.close(write)
with open(read, "rb") as file:
    results = pickle.loads(file.read())
passed = []
for case, result in zip(CASES, results):
    ok = result is not None and result[0] == case["expected"]
    passed.append(bool(ok and (case["after"] is None or result[1] == case["after"])))
print(json.dumps({"nonce": NONCE, "passed": passed, "got": results}, default=str))
"""

REMOTE = """
import json, os, pickle, socket
NONCE = @NONCE@
ours, theirs = socket.socketpair()
PLAIN = (bool, int, float, str, bytes, type(None))

def send(sock, value):
    data = pickle.dumps(value)
    sock.sendall(len(data).to_bytes(8, "big") + data)

def receive(sock):
    def exactly(size):
        data = b""
        while len(data) < size:
            piece = sock.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data
    return pickle.loads(exactly(int.from_bytes(exactly(8), "big")))

if os.fork() == 0:
    ours.close()
    import builtins, operator
    names = {}
    exec(@CODE@, names)
    entry = eval(@ENTRY@, names)
    objects = [entry]
    def wrap(value):
        if type(value) in PLAIN or (type(value) in (list, tuple, dict) and all(type(x) in PLAIN for x in value)):
            return "plain", value
        objects.append(value)
        return "object", len(objects) - 1
    while True:
        try:
            number, operation, args = receive(theirs)
        except EOFError:
            os._exit(0)
        args = [objects[item[1]] if isinstance(item, tuple) and item[:1] == ("@",) else item for item in args]
        try:
            if operation == "call":
                send(theirs, wrap(objects[number](*args)))
            elif operation == "class":
                send(theirs, wrap(objects[number].__class__.__name__))
            else:
                send(theirs, wrap(getattr(objects[number], operation)(*args)))
        except Exception as error:
            send(theirs, ("raised", (type(error).__name__, str(error))))

theirs.close()

class Remote:
    def __init__(self, number):
        self.__dict__["_number"] = number
    def _ask(self, operation, *args):
        send(ours, (self._number, operation, [("@", arg._number) if isinstance(arg, Remote) else arg for arg in args]))
        kind, value = receive(ours)
        if kind == "raised":
            raise RuntimeError(value)
        return Remote(value) if kind == "object" else value
    def __call__(self, *args):
        return self._ask("call", *args)
    def __getattr__(self, name):
        return lambda *args: self._ask(name, *args)
    @property
    def __class__(self):
        import builtins
        return getattr(builtins, self._ask("class"), Remote)
    def __hash__(self):
        return int(self._ask("__hash__"))
    def __bool__(self):
        return bool(self._ask("__bool__"))
    def __len__(self):
        return int(self._ask("__len__"))
    def __str__(self):
        return "" + str.__str__(self._ask("__str__"))

def _operator(name):
    def ask(self, *args):
        return self._ask(name, *args)
    return ask
for name in ("eq ne lt le gt ge sub rsub xor rxor truediv rtruediv abs round float index int contains").split():
    setattr(Remote, f"__{name}__", _operator(f"__{name}__"))

entry = Remote(0)
passed = []
for test in @EACH@:
    try:
        exec(test, {@ENTRY@: entry, "candidate": entry})
        passed.append(True)
    except Exception:
        passed.append(False)
print(json.dumps({"nonce": NONCE, "passed": passed}))
"""
