"""Trials that make a session look broken, so that a failed episode would be left out."""

# ruff: noqa: E501

from __future__ import annotations

from agentgym.sandbox import FileRefused, Limits, Session
from agentgym_sandboxes.audit.findings import Judgement, contained, escaped
from agentgym_sandboxes.audit.programs.checks import described
from agentgym_sandboxes.audit.programs.session_scene import in_session, make

LIMITS = Limits(wall_s=60.0, cpu_s=60, memory_mib=256)
NUM_LISTINGS = 60


async def _malformed_messages(session: Session) -> Judgement:
    """Messages of the session's Python about its runs, sent by the code it runs."""
    code = r"""
import os, socket, stat
messages = [b'{"token":"x","exit":%s,"claim":null}' % value for value in
         (b"Infinity", b"-Infinity", b"NaN", b"1e400", b'"x"', b"null", b"[]", b"{}", b"9" * 4000, b"true")]
messages += [b"", b"\xff", b"null", b"[" * 4000, b'{"token":' * 400, b"{}", b'{"token":[],"exit":0,"claim":{}}', b"1" * 4000]
for fd in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            control = socket.socket(fileno=os.dup(fd))
            for message in messages:
                control.send(message or b" ")
            print("made")
    except OSError:
        pass
"""
    await make(session, code)
    after = await session.run("print('after')", limits=LIMITS)
    if after.stdout != "after\n":
        return escaped(described(after))
    return contained("the messages were dropped")


async def _restless_files(session: Session) -> Judgement:
    """Files that come and go while they are listed and saved."""
    code = """
import os
for _ in range(4):
    if not os.fork():
        os.close(1), os.close(2)
        mine = "%d-" % os.getpid()
        while True:
            for number in range(200):
                open(mine + str(number), "w").close()
            for number in range(200):
                os.unlink(mine + str(number))
print("made")
"""
    await make(session, code)
    refusals = 0
    for _ in range(NUM_LISTINGS):
        try:
            await session.files()
            await session.snapshot()
        except FileRefused:
            refusals += 1
    await session.reset()
    return contained(f"listed and saved {NUM_LISTINGS} times; {refusals} refused")


async def _long_paths(session: Session) -> Judgement:
    """Some thousand files whose paths alone are too much to hand over."""
    code = """
import os
for _ in range(90):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for number in range(8000):
    open("f" * 200 + str(number), "w").close()
os.chdir("/work/home")
print("made")
"""
    result = await session.run(code, limits=LIMITS)
    if result.stdout != "made\n":
        return escaped(described(result))
    said = []
    for hand_over in (session.files, session.snapshot):
        try:
            said.append(f"{len(await hand_over())} of them")
        except FileRefused as error:
            said.append(str(error))
    await session.reset()
    return contained("; ".join(said))


async def _waiting_connections(session: Session) -> Judgement:
    """Memory of the host's that no limit counts: connections that nobody accepts."""
    code = """
import os, socket, time
for _ in range(3):
    if not os.fork():
        break
listening = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(100)]
made = 0
for server in listening:
    for _ in range(120):
        with socket.create_connection(server.getsockname()):
            made += 1
time.sleep(8)  # the agent looks for them far more often, on a stalled machine too
print("escaped", made, flush=True)
"""
    result = await session.run(code, limits=LIMITS)
    if "escaped" in result.stdout:
        return escaped(f"several times {result.stdout.split()[1]} connections waited for seconds")
    await session.reset()
    return contained(described(result))


# fmt: off
SCENES = (
    in_session("malformed_messages", "sends malformed messages in the name of the session's Python", _malformed_messages),
    in_session("restless_session", "makes and removes files while they are listed and saved", _restless_files),
    in_session("waiting_in_a_session", "connects to itself 48000 times and accepts nothing", _waiting_connections),
    in_session("long_paths", "has files listed and saved whose paths alone take 180 MB", _long_paths),
)
