"""Prints the rewards that skyrl-gym itself gives: lines of JSON on standard input, each `[name, row, words, turns]`.

Nothing of agentgym is imported.
"""

import json
import sys


def main():
    sys.path.pop(0)  # where a small skyrl_gym is
    import skyrl_gym
    from skyrl_gym.envs.search.env import SearchEnvConfig

    for line in sys.stdin:
        name, row, words, turns = json.loads(line)
        extras = {key: value for key, value in row.items() if key not in ("prompt", "env_class")} | {"max_turns": turns}
        environment = skyrl_gym.make(name, env_config=SearchEnvConfig(), extras=extras)
        environment.init(row["prompt"])
        rewards, done = [], False
        for word in words:
            if not done:
                out = environment.step(word)
                rewards.append(float(out["reward"]))
                done = out["done"]
        print(json.dumps([sum(rewards), done, len(rewards)]))


main()
