"""As much of verifiers' older interface as an environment package can be played by: rows, a rollout, its reward."""

import asyncio
import importlib
import json
import os
from urllib.request import Request, urlopen


def load_environment(name, **arguments):
    return importlib.import_module(name).load_environment(**arguments)


class Environment:
    """reward: of what the policy said, by the row."""

    def __init__(self, dataset, reward, eval_dataset=None):
        self.dataset, self.eval_dataset, self._reward = dataset, eval_dataset, reward

    async def run_rollout(self, row, config, model, sampling_args):
        body = json.dumps({"model": model, "messages": row["prompt"]}).encode()
        headers = {"authorization": f"Bearer {os.environ[config.api_key_var]}", "content-type": "application/json"}
        request = Request(f"{config.api_base_url}/chat/completions", body, headers)
        answer = json.loads(await asyncio.to_thread(lambda: urlopen(request).read()))
        said = answer["choices"][0]["message"]["content"]
        error = {"error_chain_repr": "ModelError('no images')", "error_chain_str": "ModelError"}
        played = {"stop_condition": "said", "metrics": {"chars": len(said)}, "error": error if said == "fail" else None}
        return {**played, "reward": await self._reward(said, row)}
