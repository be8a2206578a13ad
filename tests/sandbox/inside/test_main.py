"""The script runs as `python train.py` would run it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from .running import Runner


def test_a_script_sees_itself_as_the_main_program(run: Runner) -> None:
    run.file("helper.py", "NAME = __name__\n")
    text = """\
        import argparse, os, pickle, sys, threading
        import helper

        class Thing:
            pass

        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int)
        print(__name__, os.path.basename(__file__), parser.parse_args().epochs, helper.NAME)
        print(os.path.basename(sys.argv[0]), sys.argv[1:], sys.path[0] == os.path.dirname(__file__))
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
        print(sys.modules["__main__"].Thing is Thing, __spec__, __package__, __doc__)
        print(threading.current_thread() is threading.main_thread(), os.getcwd())
        print(sorted(name for name in vars() if name.startswith("__")))
        """
    done = run(text, "--epochs", "3")
    plain = run.plainly("--epochs", "3")
    assert (done.code, done.out, done.err) == (plain.returncode, plain.stdout, plain.stderr)
    assert "__main__ train.py 3 helper" in done.out
    assert done.one("end")["code"] == 0


def test_a_crash_shows_the_traceback_that_python_shows(run: Runner) -> None:
    """Of watched calls, too: none of our own lines stands in it."""
    run.file(
        "data.py",
        """\
        import subprocess
        def load(name):
            try:
                open(name)
            except OSError:
                subprocess.run(["/no/such/program"])
        """,
    )
    text = """\
        import data
        def main():
            try:
                data.load("missing.bin")
            except OSError as error:
                raise RuntimeError("no data") from error
        main()
        """
    done = run(text)
    plain = run.plainly()
    assert plain.returncode == 1
    assert (done.code, done.err) == (1, plain.stderr)
    end = done.one("end")
    assert end["error"] == plain.stderr
    assert (end["code"], end["type"], end["message"]) == (1, "RuntimeError", "no data")


def test_a_syntax_error_is_shown_as_python_shows_it(run: Runner) -> None:
    done = run("x = 1\nif x\n    y = 2\n")
    assert (done.code, done.err) == (1, run.plainly().stderr)
    assert done.one("end")["type"] == "SyntaxError"


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [("sys.exit('no data')", 1, "no data\n"), ("os._exit(9)", 9, "")],
)
def test_exit_codes_are_kept(run: Runner, statement: str, code: int, said: str) -> None:
    done = run(f"import os, sys\n{statement}\n")
    assert (done.code, done.err) == (code, said)
    # Nobody can tell of an os._exit.
    assert [end["code"] for end in done.of("end")] == ([] if code == 9 else [code])


def test_the_end_is_told_after_threads_and_atexit_and_the_scripts_own_excepthook(
    run: Runner,
) -> None:
    done = run("""\
        import atexit, sys, threading
        def late():
            threading.main_thread().join()
            open("thread.txt", "w").write("done")
        atexit.register(lambda: open("atexit.txt", "w").write("done"))
        threading.Thread(target=late).start()
        sys.excepthook = lambda kind, error, calls: print("mine:", error, calls.tb_lineno)
        raise ValueError("wrong")
        """)
    assert (done.code, done.out, done.err) == (1, "mine: wrong 8\n", "")
    told = [(one["event"], Path(one.get("path", "")).name) for one in done.events]
    assert told[-4:] == [
        ("open", "thread.txt"),
        ("open", "atexit.txt"),
        ("modules", ""),
        ("end", ""),
    ]
    assert done.one("end")["message"] == "wrong"


def test_multiprocessing_works_and_its_processes_are_watched(run: Runner) -> None:
    done = run("""\
        import multiprocessing
        class Thing:
            pass
        def work(thing, name):
            with open(name, "w") as file:
                file.write(type(thing).__name__)
        if __name__ == "__main__":
            for method in "spawn", "fork", "forkserver":
                context = multiprocessing.get_context(method)
                process = context.Process(target=work, args=(Thing(), method))
                process.start()
                process.join()
                print(process.exitcode, open(method).read())
        """)
    assert (done.code, done.out) == (0, "0 Thing\n" * 3), done.explain()
    for method in ("spawn", "fork", "forkserver"):
        made = done.one("open", path=str(run.folder / method))
        assert made["pid"] != done.one("start")["pid"]
        assert made["where"] == "train.py:5 in work"


def test_a_process_that_runs_python_is_watched_and_is_otherwise_as_it_would_be(
    run: Runner, tmp_path: Path
) -> None:
    """It keeps its own sitecustomize, and imports no rankup: its environment may have none."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.CUSTOM = 'mine'\n")
    program = "import sys; open('child.txt', 'w'); print(CUSTOM); print(*sys.modules)"
    done = run(
        f"""\
        import subprocess, sys
        subprocess.check_call([sys.executable, "-I", "-S", "-c", "pass"])
        subprocess.check_call([sys.executable, "-c", {program!r}])
        """,
        environment={"PYTHONPATH": str(own)},
    )
    custom, modules = done.out.splitlines()
    assert (done.code, custom) == (0, "mine"), done.explain()
    assert [one for one in modules.split() if one.partition(".")[0] == "rankup"] == []
    assert "rankup_of_sandbox" in modules.split()
    assert done.one("open")["path"] == str(run.folder / "child.txt")


def test_the_bounds_hold_in_the_script_and_in_what_it_starts(run: Runner) -> None:
    done = run(
        """\
        import os, resource, subprocess
        print(len(os.sched_getaffinity(0)), os.nice(0))
        print(resource.getrlimit(resource.RLIMIT_DATA))
        subprocess.run(["sh", "-c", "nice; echo cores $(nproc)"], check=True)
        try:
            bytearray(2_000_000_000)
        except MemoryError:
            print("no memory")
        """,
        threads=1,
        data_limit=1_000_000_000,
    )
    limit = "(1000000000, 1000000000)"
    niceness = str(min(19, os.nice(0) + 10))
    assert done.code == 0, done.explain()
    assert sorted(done.out.splitlines()) == sorted(
        [f"1 {niceness}", limit, niceness, "cores 1", "no memory"]
    )


def test_shortly_before_its_end_it_writes_where_the_script_is(run: Runner) -> None:
    stack = run.state / "stack.txt"

    def end(process: subprocess.Popen[bytes]) -> None:
        _until(stack, "in wait")
        process.kill()

    run(
        """\
        import time
        def wait():
            time.sleep(600)
        wait()
        """,
        meanwhile=end,
        deadline=time.time() + 5,
    )
    assert re.search(r'train\.py", line 3 in wait', stack.read_text())


def _until(path: Path, text: str) -> None:
    end = time.monotonic() + 120
    while not path.exists() or text not in path.read_text(encoding="utf-8"):
        assert time.monotonic() < end, f"{text!r} has not come into {path}"
        time.sleep(0.02)


def test_a_traceback_is_held_back_where_the_parent_may_have_another_start_in_mind(
    run: Runner,
) -> None:
    """And a long message does not fill the journal."""
    text = "import sys\nprint('before', file=sys.stderr)\nraise ValueError('x' * 1_000_000 + 'y')\n"
    held = run(text)
    kept = (run.state / "traceback.txt").read_text()
    assert (held.code, held.err) == (1, "before\n" + kept)
    assert held.err == run.plainly().stderr
    end = held.one("end")
    assert len(end["message"]) < 70_000
    assert len(end["error"]) < 70_000
    assert end["message"].endswith("xy")


def test_an_error_is_told_without_the_secrets_in_it(run: Runner) -> None:
    """Values of secret variables, URLs, and what looks like a token."""
    done = run(
        """\
        import os
        secret = os.environ["MY_TOKEN"]
        token = "hf_" + "abcdefgh" * 4
        raise OSError(f"Authorization: Bearer {secret} of https://me:{secret}@h/a?b=c {token}")
        """,
        environment={"MY_TOKEN": "s3cr3t words"},
    )
    end = done.one("end")
    assert "s3cr3t words" not in str(done.events), done.explain()
    assert "..." in end["message"]
    assert end["message"].endswith(" https://h/a hf_..."), done.explain()
    assert "train.py" in end["error"]
