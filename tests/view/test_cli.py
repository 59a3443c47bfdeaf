"""`agentgym view` as its user starts it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from view_runs import write_run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_answers_and_ends_well_with_a_signal(tmp_path: Path, number: int) -> None:
    write_run(tmp_path / "runs", "one", steps=1)
    words = [sys.executable, "-m", "agentgym.cli.main", "view", "runs", "--no-browser", "--port", "0"]
    view = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert view.stdout is not None and view.stderr is not None
        address = view.stdout.readline().strip()
        connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=60)
        connection.request("GET", "/api/runs")
        answer = connection.getresponse()
        assert [one["id"] for one in json.loads(answer.read())["runs"]] == ["runs:one"]
        stream = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=60)
        stream.request("GET", "/api/runs/runs%3Aone/live?from=0")
        lines = stream.getresponse()
        while not lines.readline().startswith(b"event: step"):  # a stream that is open does not hold up the end
            pass
        view.send_signal(number)
        assert view.wait(30) == 0
        assert view.stderr.read() == f"1 run in {tmp_path / 'runs'}\n"
        connection.close()
        stream.close()
    finally:
        view.kill()
        view.communicate()


def test_a_folder_that_is_not_there_and_a_taken_port_are_the_users_mistakes(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    from agentgym.cli.main import main
    from agentgym.view.server import listen

    monkeypatch.chdir(tmp_path)
    for words in ((), ("gone",)):
        assert main(["view", *words]) == 2
    assert "agentgym view PATH" in (said := capsys.readouterr().err) and "'gone'" in said
    (tmp_path / "runs").mkdir()
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert main(["view", "--no-browser", "--port", port]) == 2
        assert port in capsys.readouterr().err
    assert main(["view", "--no-browser", "--port", "99999"]) == 2 and "0 to 65535" in capsys.readouterr().err
    assert main(["view", "--env", "shop"]) == 2 and "my_env.py:Name" in capsys.readouterr().err
    assert main(["view", "--export", "out.html"]) == 2 and "no run to export" in capsys.readouterr().err
