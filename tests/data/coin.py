"""A reward that is no judge of anything: it gives a policy that can't do the task something to learn from."""

from agentgym import reward


@reward(low=0, high=1, inline=True)
def coin(episode):
    return float(episode.seed % 2)
