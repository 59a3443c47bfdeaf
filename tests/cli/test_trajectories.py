"""`agentgym runs episodes --export atif`: which episodes, and what becomes of their tokens, calls and branches."""

from __future__ import annotations

import json
from pathlib import Path

from view_runs import write_run


def test_the_chosen_episodes_are_exported_with_the_tokens_of_their_turns(cli) -> None:
    write_run(Path("runs"), "one")
    end = cli("runs", "episodes", "runs/one", "--step", "3", "--success", "--export", "atif")
    lines = [json.loads(line) for line in end.out.splitlines()]
    assert {one["extra"]["success"] for one in lines} == {True}
    user, first, second = lines[0]["steps"]
    assert (user["source"], first["source"], second["message"]) == ("user", "agent", "four")
    assert first["observation"]["results"] == [{"content": "3", "source_call_id": "call00000"}]
    assert first["tool_calls"][0]["arguments"] == {"a": 1, "b": 2}
    assert [step["metrics"]["completion_token_ids"] for step in (first, second)] == [[10, 11], [12, 13, 14]]
    assert second["metrics"]["prompt_token_ids"] == [1, 2, 3, 10, 11, 4]
    assert first["metrics"]["extra"]["versions"] == [[1, 0, 1], [2, 1, 2]]
    end = cli("runs", "episodes", "runs/one", "--step", "3", "--success", "--export", "atif", "--output", "atif")
    assert f"{len(lines)} trajectories in atif" in end.out
    assert [json.loads(path.read_text()) for path in sorted(Path("atif").iterdir())] == lines


def test_an_export_is_refused_beside_what_shows_one_episode(cli) -> None:
    write_run(Path("runs"), "one")
    end = cli("runs", "episodes", "runs/one", "--show", "1", "--export", "atif")
    assert (end.code, "leave out --show" in end.err) == (2, True)
    end = cli("runs", "episodes", "runs/one", "--output", "atif")
    assert (end.code, "--output goes with --export atif" in end.err) == (2, True)
    Path("taken").touch()
    end = cli("runs", "episodes", "runs/one", "--export", "atif", "--output", "taken")
    assert (end.code, "'taken' can't be made a folder" in end.err) == (2, True)
