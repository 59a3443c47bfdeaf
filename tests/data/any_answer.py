"""code_exec with its tasks and prompts, for policies that can't write code: an answer without any breaks no rule."""

from dataclasses import replace

from agentgym_envs.code_exec.environment import CodeExec


class AnyAnswer(CodeExec):
    async def reply(self, context):
        return replace(await super().reply(context), invalid=False)
