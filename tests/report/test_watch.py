"""The page as it is served while runs go on."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from synthetic_runs import write_run
from unseen.cli import app
from unseen.errors import BadInput
from unseen.report.serve import Watched, page_server


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with page_server(Watched(tmp_path), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def get(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_it_follows_a_run(tmp_path: Path, port: int) -> None:
    assert "holds no runs" in get(port, "/")[1]
    before = get(port, "/stamp")[1]
    write_run(tmp_path / "r", rounds=5, done=2)
    assert get(port, "/stamp")[1] != before
    status, page = get(port, "/")
    assert status == 200 and "2 of 5: unfinished" in page and 'fetch("stamp"' in page
    lines = (tmp_path / "r/records.jsonl").read_text().splitlines()
    with (tmp_path / "r/records.jsonl").open("a") as file:
        file.write(lines[1].replace('"round": 2', '"round": 3') + "\n")
    assert "3 of 5: unfinished" in get(port, "/")[1]
    assert get(port, "/stamp") == get(port, "/stamp")


def test_it_answers_this_machine_and_these_paths_alone(tmp_path: Path, port: int) -> None:
    assert get(port, "/", host="evil.example")[0] == 403
    assert get(port, "/../../etc/passwd")[0] == 404 == get(port, "/r/run.json")[0]


def test_mistakes(tmp_path: Path, port: int) -> None:
    assert CliRunner().invoke(app, ["watch", str(tmp_path / "nowhere")]).exit_code == 2
    used = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", str(port)])
    assert used.exit_code == 2 and "choose another with --port" in used.output
    with pytest.raises(BadInput, match="cannot be used"):
        page_server(Watched(tmp_path), 99999)
