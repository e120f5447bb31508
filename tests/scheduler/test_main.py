"""The entry point: what a person reads when a command fails."""

from spanwise.scheduler.main import main


def test_control_characters_of_a_name_are_escaped_in_an_error(tmp_path, monkeypatch, capsys):
    """A name that came from data or from another person must not move the cursor or hide a line."""
    monkeypatch.chdir(tmp_path)

    assert main(["run", "a\x1b[2Kb\rc.py"]) == 2
    assert "There is no file a\\x1b[2Kb\\rc.py." in capsys.readouterr().err


def test_the_lines_of_an_error_stay(tmp_path, monkeypatch, capsys):
    """A message of several lines is printed in several lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.py").write_text("x = (\n")

    assert main(["run", "given.py"]) == 2
    assert "SyntaxError" in capsys.readouterr().err.splitlines()[-1]
