"""What is left of episodes under a recipe's limits."""

from __future__ import annotations

import pytest

from agentgym.errors import UserError
from agentgym.planning.lengths import as_played, decode_context
from agentgym.rollout.config import RolloutConfig

LIMITS = RolloutConfig(max_turn_tokens=100, max_episode_tokens=250)


@pytest.mark.parametrize(
    ("turns", "played"),
    [
        (((50, 100), (50, 50)), ((50, 100), (50, 50))),  # up to both limits, nothing is cut
        (((50, 101), (50, 50)), ((50, 100),)),  # a turn that is cut is the last
        (((50, 100), (50, 90)), ((50, 100), (50, 50))),
        (((50, 100), (100, 5)), ((50, 100),)),  # the second has no room
    ],
)
def test_a_turn_ends_at_its_limit_or_the_episodes_and_with_it_the_episode(turns, played) -> None:
    assert as_played((turns,), LIMITS) == (played,)


def test_what_has_no_token_to_sample_is_left_out_and_refused_where_nothing_is_left() -> None:
    assert as_played((((250, 5),), ((249, 5),)), LIMITS) == (((249, 1),),)
    with pytest.raises(UserError, match=r"a prompt of 250 tokens leaves none .*max_episode_tokens is 250"):
        as_played((((300, 5),), ((250, 5),)), LIMITS)


def test_tokens_are_sampled_at_the_mean_context_over_all_of_them() -> None:
    """Against the context of each token, counted one by one."""
    assert decode_context((((200, 1000),),)) == 200 + 500
    episodes = (((50, 10), (30, 20)), ((5, 400),))
    contexts = []
    for turns in episodes:
        known = 0
        for new, tokens in turns:
            contexts += [known + new + number + 0.5 for number in range(tokens)]
            known += new + tokens
    assert decode_context(episodes) == round(sum(contexts) / len(contexts))
    assert decode_context((((50, 0),),)) == 0
