"""An environment of skyrl-gym with two turns: a reward that tells answers apart, and words that make it do wrong."""

import hashlib
import os
import time
from pathlib import Path

import skyrl_gym


class PythonCodeExecutorToolGroup:
    """By its name: what runs what the policy writes."""


class HashEnv(getattr(skyrl_gym, "Env", object)):
    def __init__(self, env_config=None, extras=None):
        assert "reward_spec" in extras, "reward_spec field is required"
        self.truth, self.turns, self.max_turns = extras["reward_spec"]["ground_truth"], 0, extras["max_turns"]
        self.tool_groups = [PythonCodeExecutorToolGroup()] if env_config.get("runs") else []
        self.closing = None
        self.wanted = env_config.get("turns", 2)

    def init(self, prompt):
        return [{"role": "system", "content": f"Answer within {self.max_turns} turns."}, *prompt], {}

    def step(self, said):
        self.turns += 1
        if said == "die":
            os._exit(3)
        if said.startswith("hang at "):
            mark = Path(said.removeprefix("hang at "))
            mark.touch()
            while mark.exists():
                time.sleep(0.01)
            self.closing = mark
        if said == "raise":
            raise ZeroDivisionError("by the environment")
        if said == "wrong":
            return None
        reward = hashlib.sha256((self.truth + said).encode()).digest()[0] / 510
        wrong = {"nan": float("nan"), "text": "1.0", "much": 7.0}
        shown = [{"type": "image_url"}] if said == "image" else "Go on."
        return {
            "observations": [{"role": "user", "content": shown}],
            "reward": wrong.get(said, reward),
            "done": "no" if said == "vague" else said in ("nan", "text", "much") or self.turns >= self.wanted,
            "metadata": {},
            "postprocessed_action": "cut" if said == "cut me" else None,
        }

    def get_metrics(self):
        return {"turns": self.turns, "name": "hash"}

    def close(self):
        if self.closing:
            self.closing.with_suffix(".closed").touch()
