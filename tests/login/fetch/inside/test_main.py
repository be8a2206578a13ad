"""The script runs as `python train.py` would run it."""

from __future__ import annotations

import signal
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
    run.file("data.py", "def load(name):\n    open(name)\n")
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


def test_an_error_in_a_watched_call_shows_none_of_our_own_lines(run: Runner) -> None:
    done = run("""\
        import urllib.request, json
        urllib.request.urlopen("http://127.0.0.1:9/x?token=secret")
        """)
    assert done.code == 1
    assert "rankup" not in done.err
    assert "train.py" in done.err


def test_a_syntax_error_is_shown_as_python_shows_it(run: Runner) -> None:
    done = run("x = 1\nif x\n    y = 2\n")
    assert (done.code, done.err) == (1, run.plainly().stderr)
    assert done.one("end")["type"] == "SyntaxError"


@pytest.mark.parametrize(
    ("statement", "code"),
    [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('no data')", 1), ("os._exit(9)", 9)],
)
def test_exit_codes_are_kept(run: Runner, statement: str, code: int) -> None:
    done = run(f"import os, sys\n{statement}\n")
    assert done.code == code
    assert done.err == run.plainly().stderr
    # Nobody can tell of an os._exit.
    assert [end["code"] for end in done.of("end")] == ([] if code == 9 else [code])


def test_the_end_is_told_after_threads_and_atexit(run: Runner) -> None:
    done = run("""\
        import atexit, threading, time
        def late():
            time.sleep(0.3)
            open("thread.txt", "w").write("done")
        atexit.register(lambda: open("atexit.txt", "w").write("done"))
        threading.Thread(target=late).start()
        """)
    told = [(one["event"], Path(one.get("path", "")).name) for one in done.events]
    assert told[-4:] == [
        ("open", "thread.txt"),
        ("open", "atexit.txt"),
        ("modules", ""),
        ("end", ""),
    ]


def test_the_scripts_own_excepthook_is_called(run: Runner) -> None:
    done = run("""\
        import sys
        sys.excepthook = lambda kind, error, calls: print("mine:", error, calls.tb_lineno)
        raise ValueError("wrong")
        """)
    assert (done.code, done.out, done.err) == (1, "mine: wrong 3\n", "")
    assert done.one("end")["message"] == "wrong"


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_works_and_its_processes_are_watched(run: Runner, method: str) -> None:
    done = run(f"""\
        import multiprocessing, os
        class Thing:
            pass
        def work(thing):
            with open("from-worker.txt", "w") as file:
                file.write(type(thing).__name__)
        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            process = context.Process(target=work, args=(Thing(),))
            process.start()
            process.join()
            print(process.exitcode, open("from-worker.txt").read())
        """)
    assert (done.code, done.out) == (0, "0 Thing\n"), done.explain()
    made = done.one("open", path=str(run.folder / "from-worker.txt"))
    assert made["pid"] != done.one("start")["pid"]
    assert made["where"] == "train.py:5 in work"


def test_a_process_that_runs_python_is_watched_and_keeps_its_own_sitecustomize(
    run: Runner, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.CUSTOM = 'mine'\n")
    program = "open('child.txt', 'w'); print(CUSTOM)"
    done = run(
        f"import subprocess, sys\nsubprocess.check_call([sys.executable, '-c', {program!r}])\n",
        environment={"PYTHONPATH": str(own)},
    )
    assert (done.code, done.out) == (0, "mine\n"), done.explain()
    assert done.one("open")["path"] == str(run.folder / "child.txt")


def test_the_bounds_hold_in_the_script_and_in_what_it_starts(run: Runner) -> None:
    done = run(
        """\
        import os, resource, subprocess
        print(os.environ["OMP_NUM_THREADS"], len(os.sched_getaffinity(0)), os.nice(0))
        print(resource.getrlimit(resource.RLIMIT_DATA))
        subprocess.run(["sh", "-c", "nice; echo $OMP_NUM_THREADS $(nproc)"], check=True)
        try:
            bytearray(2_000_000_000)
        except MemoryError:
            print("no memory")
        """,
        threads=1,
        data_limit=1_000_000_000,
        environment={"OMP_NUM_THREADS": "64"},
    )
    limit = "(1000000000, 1000000000)"
    assert done.code == 0, done.explain()
    assert sorted(done.out.splitlines()) == sorted(["1 1 10", limit, "10", "1 1", "no memory"])


def test_sigusr2_writes_where_the_script_is(run: Runner) -> None:
    def ask(process: subprocess.Popen[str]) -> None:
        events = run.state / "events.jsonl"
        until = time.monotonic() + 30
        while time.monotonic() < until and "waiting" not in _text(events):
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR2)
        while time.monotonic() < until and "in wait" not in _text(run.state / "stack.txt"):
            time.sleep(0.05)
        process.kill()

    run(
        """\
        import os, time
        def wait():
            os.mkdir("waiting")
            time.sleep(60)
        wait()
        """,
        meanwhile=ask,
    )
    assert 'train.py", line 4 in wait' in _text(run.state / "stack.txt")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_a_traceback_is_held_back_where_the_parent_may_have_another_start_in_mind(
    run: Runner,
) -> None:
    plain = run("import sys\nprint('before', file=sys.stderr)\nraise KeyError('RANK')\n")
    held = run("import sys\nprint('before', file=sys.stderr)\nraise KeyError('RANK')\n", hold=True)
    assert (held.code, held.err) == (1, "before\n")
    kept = (run.state / "traceback.txt").read_text()
    assert "before\n" + kept == plain.err
    assert kept.endswith("KeyError: 'RANK'\n")


def test_an_error_with_a_long_message_does_not_fill_the_journal(run: Runner) -> None:
    done = run("raise ValueError('x' * 5_000_000 + 'at the end')\n")
    end = done.one("end")
    assert len(end["message"]) < 70_000
    assert len(end["error"]) < 70_000
    assert end["message"].endswith("at the end")
