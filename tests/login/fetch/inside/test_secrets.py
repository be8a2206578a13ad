"""What a script's error holds of secrets is not written down."""

from __future__ import annotations

import pytest

from .running import Runner


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError(f\"403 for headers Authorization: Bearer {os.environ['MY_TOKEN']}\")",
        "ValueError(os.environ['MY_TOKEN'])",
        'OSError("https://me:" + os.environ[\'MY_TOKEN\'] + "@h/a?b=c")',
    ],
)
def test_an_error_is_told_without_the_token_in_it(run: Runner, error: str) -> None:
    done = run(f"import os\nraise {error}\n", environment={"MY_TOKEN": "s3cr3t words"})
    end = done.one("end")
    assert "s3cr3t words" not in str(done.events), done.explain()
    assert "..." in end["message"] or end["message"] == "https://h/a", done.explain()
    assert "train.py" in end["error"]


def test_a_token_that_the_script_itself_has_read_is_known_by_its_look(run: Runner) -> None:
    done = run('token = "hf_" + "abcdefgh" * 4\nraise RuntimeError(f"refused: {token}")\n')
    assert done.one("end")["message"] == "refused: hf_..."


def test_processes_that_the_script_starts_import_no_rankup_for_it(run: Runner) -> None:
    """They may be of another environment, which has none or another one."""
    done = run("""\
        import subprocess, sys
        code = "import sys; print(sorted(n for n in sys.modules if n.startswith('rankup')))"
        sys.exit(subprocess.run([sys.executable, "-I", "-S", "-c", "pass"]).returncode
                 or subprocess.run([sys.executable, "-c", code]).returncode)
        """)
    assert done.code == 0, done.explain()
    assert "'rankup_of_fetch'" in done.out
    assert "'rankup'" not in done.out
    assert "'rankup." not in done.out
