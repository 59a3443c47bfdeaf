"""What a run says that ends because its groups have nothing left to teach."""

import pytest

from agentgym.errors import InfraError
from agentgym.rl.ending import nothing_left
from agentgym.types import Episode, ErrorRecord, Group, Outcome, Stop, Task

TASK = Task(task_id="t", prompt=())


def group(*successes, reward=0.5, outcome=Outcome.SCORED):
    error = ErrorRecord(source="sandbox", kind="unsupported", message="no such module")
    broken = outcome is Outcome.INFRA_ERROR
    episodes = [
        Episode(
            episode_id="e",
            task=TASK,
            seed=0,
            info={} if success is None else {"success": success},
            reward=None if broken else reward,
            outcome=outcome,
            error=error if broken else None,
        )
        for success in successes
    ]
    return Group(group_id=0, task=TASK, start_version=0, episodes=episodes)


@pytest.mark.parametrize(
    ("groups", "found", "advice"),
    [
        ([group(True, True, reward=1.0)] * 3, "every episode of the last 3 groups succeeded", "harder tasks"),
        ([group(False, False, reward=0.0)] * 3, "no episode of the last 3 groups succeeded", "easier tasks"),
        ([group(True, True), group(False, False)], "1 all right, 1 all wrong", "loop.group_size"),
        ([group(True, False)] * 2, "the same reward", "tells them apart"),
        ([group(None, None)] * 2, "the same reward", "tells them apart"),
        ([group(True)] * 2 + [group(False, outcome=Outcome.INFRA_ERROR)], "of the last 2 groups", "harder tasks"),
    ],
)
def test_the_line_says_what_was_found_and_what_to_do(groups, found, advice):
    line = nothing_left(groups)
    assert line.startswith("nothing is left to learn: ") and "\n" not in line
    assert found in line and advice in line


def test_groups_of_which_nothing_could_be_scored_are_a_failure_with_its_cause():
    with pytest.raises(InfraError, match=r"none of 4 episodes could be scored.*unsupported: no such module"):
        nothing_left([group(True, True, outcome=Outcome.INFRA_ERROR)] * 2)


def test_turns_that_were_cut_are_the_cause_unless_all_succeed():
    cut, whole = group(False, False, reward=0.0), group(False, False, reward=0.0)
    for episode in cut.episodes:
        episode.stop = Stop.TURN_TOKENS
    said = "nothing is left to learn: 2 of 4 episodes were cut by rollout.max_turn_tokens (tokens): raise it"
    assert nothing_left([cut, whole]).startswith(said)
    assert "cut by" not in nothing_left([cut, whole, whole])
    for episode in cut.episodes:
        episode.info["success"] = True
    assert "cut by" not in nothing_left([cut])


def test_what_the_machine_cut_is_the_cause_and_not_that_the_tasks_are_hard():
    cut, whole = group(False, False, reward=0.0), group(False, False, reward=0.0)
    for episode in cut.episodes:
        episode.time_limit = "rollout.generate_timeout_s = 60"
    line = nothing_left([cut, whole])
    assert line.startswith("nothing is left to learn: 2 of 4 episodes were cut by rollout.generate_timeout_s = 60")
    assert "cut by" not in nothing_left([cut, whole, whole])
    with pytest.raises(InfraError, match=r"nothing can be learned: 4 of 4 episodes were cut by .*: raise it"):
        nothing_left([cut, cut])
