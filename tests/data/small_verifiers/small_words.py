"""An environment package: say a word. Words beside the right one make it do what packages should not."""

import asyncio
import os
import random
import subprocess
import time

import verifiers as vf


async def reward(said, row):
    print("printed by the package, which is no answer")
    if said == "die":
        os._exit(3)
    if said == "hang":
        await asyncio.Event().wait()
    if said == "block":
        time.sleep(1000)
    if said == "raise":
        raise ZeroDivisionError("by the package")
    return {"nan": float("nan"), "text": "1.0", "none": None, "much": 2.5}.get(said, float(said == row["answer"]))


def load_environment(*, size=20, own_test=0, drawn=False, child=False):
    numbers = random.SystemRandom().sample(range(10**9), size + own_test) if drawn else range(size + own_test)
    rows = [{"prompt": [{"role": "user", "content": f"say w{n}"}], "answer": f"w{n}"} for n in numbers]
    if child:
        rows = [{"prompt": str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid), "answer": ""}]
    return vf.Environment(rows[:size], reward, rows[size:] or None)
