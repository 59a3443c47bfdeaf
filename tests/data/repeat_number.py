"""An environment in one file: the agent repeats a number, in as few characters as it can."""

from agentgym import Environment, Reply, Task, reward


class RepeatNumber(Environment):
    rewards = {"success": 1.0}

    def tasks(self, split, seed=0):
        for number in range(seed, seed + 1000):
            if (number % 10 == 0) == (split == "test"):  # so no task is in both splits
                prompt = {"role": "user", "content": f"Repeat the number {number}."}
                yield Task(task_id=f"repeat/{number}", prompt=(prompt,), answer=number, split=split)

    async def reply(self, context):
        context.info["success"] = context.messages[-1]["content"].strip() == str(context.task.answer)
        return Reply(done=True)

    def solve(self, task):
        yield {"role": "assistant", "content": str(task.answer)}

    @reward(weight=0.1)
    def short(self, episode):
        return 1 / (1 + len(episode.messages[-1]["content"]))
