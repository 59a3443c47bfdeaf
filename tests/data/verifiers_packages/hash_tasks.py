"""An environment package of verifiers' new interface: tasks, and a reward that tells answers apart."""

import hashlib

import verifiers.v1 as vf


class HashData(vf.TaskData):
    answer: str


class HashTask(vf.Task[HashData]):
    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def luck(self, trace: vf.Trace) -> float:
        said = "".join(message.content or "" for message in trace.assistant_messages)
        return hashlib.sha256((self.data.answer + said).encode()).digest()[0] / 255


class HashTasks(vf.Taskset[HashTask, vf.TasksetConfig]):
    def load(self) -> list[HashTask]:
        return [HashTask(HashData(idx=n, prompt=f"Say {n}.", answer=str(n)), self.config.task) for n in range(10)]


__all__ = ["HashTasks"]
