"""Runs the user's unchanged script, watched; and watches the Python processes that it starts."""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import resource
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType

from . import children, devices, network, spec
from .files import Files, writers
from .hooks import AfterImport, Changes, Hook
from .journal import Journal
from .network import Network
from .spec import MAIN, Spec
from .training import Training, without_ours

_NICE = 10


def main() -> int:
    """Run the script of the spec in the folder that `RANKUP_SANDBOX` names.

    Returns:
        The exit code that Python would end the script with.
    """
    given = spec.load()
    os.environ[MAIN] = str(os.getpid())
    _import_from_copy(given.shadow)
    _reach_children()
    if given.pretend:
        os.environ.update(devices.launcher_variables())
    journal, training = install(given)
    _set_bounds(given, journal)
    try:
        journal.must("start", python=sys.version.split()[0], script=given.script)
    except OSError as error:  # the parent says what to do
        print(f"rankup: {given.folder} cannot be written to: {error.strerror}", file=sys.stderr)
        return 1
    if given.deadline is not None:
        with open(given.file(spec.STACK), "ab") as stack:
            # The descriptor of the duplicate is faulthandler's, and stays open.
            left = max(0.1, given.deadline - time.time())
            faulthandler.dump_traceback_later(left, file=os.dup(stack.fileno()))
    return _run(given, training)


def install(given: Spec) -> tuple[Journal, Training]:
    """Watch this process from now on."""
    main_process = int(os.environ.get(MAIN, os.getpid()))
    journal = Journal(given.file(spec.EVENTS), given.script, given.shadow)
    hook = Hook()
    training = Training(journal, hook, main_process)
    ignored = (*map(given.file, spec.OURS), given.temporary)
    files = Files(journal, given.shadow, ignored, given.free, given.folder, given.earlier)
    net = Network(journal, block=given.block, main=main_process, used=training.network_used)
    changes: Changes = {
        **devices.redirections(
            devices.Devices(journal), given.threads, gpus=int(given.pretend), alone=True
        ),
        "torch.nn.modules.module": [training.watch_modules],
        "torch.autograd": [training.watch_autograd],
        "torch.optim.optimizer": [training.watch_optimizers],
        "torch.utils.data.dataloader": [
            lambda module: devices.limit_loader(module, given.threads),
            training.watch_loader,
        ],
        **writers(files, hook),
        **network.clients(net),
    }
    # Without these the script would not be stopped, and train to its end on a login node.
    needed = (training.watch_loader, training.watch_modules)
    AfterImport(changes, journal, needed, training.refuse).install()
    hook.install({**files.handlers(), **net.handlers()})
    return journal, training


def install_in_child() -> None:
    """Watch a Python process that the script has started; called by `sitecustomize`.

    Where that is not possible the process does not start: it would be neither watched nor kept from
    the network.
    """
    if any("multiprocessing.resource_tracker" in word for word in sys.orig_argv):
        # It cleans up after those that we end, and would complain of them to the user.
        warnings.filterwarnings("ignore", "resource_tracker: ")
        return
    try:
        install(spec.load())
    except Exception as error:
        os.write(2, f"rankup fetch cannot watch this process: {error!r}\n".encode())
        os._exit(70)


def _set_bounds(given: Spec, journal: Journal) -> None:
    """A login node is shared: few threads, low priority, bounded memory; all inherit them."""
    with suppress(OSError):
        os.nice(_NICE)
    _stay_on_few_cores(given.threads)
    if given.data_limit is not None:
        try:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            unlimited = hard == resource.RLIM_INFINITY
            limit = given.data_limit if unlimited else min(given.data_limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        except (OSError, ValueError) as error:
            journal.problem("the limit of memory", error)


def _stay_on_few_cores(threads: int) -> None:
    """Libraries that know no variable count the cores that they may use, or just fill them."""
    with suppress(OSError, AttributeError):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > threads:
            # Neighbours, but not the same ones for every user of the node.
            first = secrets.randbelow(len(cores) - threads + 1)
            os.sched_setaffinity(0, cores[first : first + threads])


def run_as_main(
    script: str, args: Iterable[str], code: Callable[[bytes, str], CodeType]
) -> BaseException | None:
    """Run a script as `python SCRIPT ARGS...` would; return what it raised.

    Args:
        code: compiles its text, given its path.
    """
    sys.argv = [script, *args]
    sys.path.insert(0, os.path.dirname(script))
    module = ModuleType("__main__")
    module.__file__ = script
    module.__loader__ = SourceFileLoader("__main__", script)
    vars(module).update(__builtins__=__builtins__, __cached__=None)
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    # Not runpy: it takes the module away at the end, when threads and atexit still use it.
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as file:
            source = file.read()
        exec(code(source, script), vars(module))  # noqa: S102 - it is what we are here for
    except BaseException as error:
        return error
    return None


def _compiled(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def _run(given: Spec, training: Training) -> int:
    """Run the script; return the exit code that Python would end with."""
    script, code = os.getpid(), 0
    unhandled: BaseException | None = None

    def ended() -> None:
        if os.getpid() == script:
            with suppress(Exception):
                training.ended(code, unhandled)

    # The first to be registered is the last to run: after the script's threads and its atexit.
    atexit.register(ended)
    error = run_as_main(given.script, given.args, _compiled)
    code = exit_code(error)
    if error is not None and not isinstance(error, SystemExit):
        unhandled = error
        _write_traceback(given, error)
    return code


def _write_traceback(given: Spec, error: BaseException) -> None:
    """Keep what Python would show of an error for the parent."""
    told = without_ours(error)
    shown, kept = sys.stderr, io.StringIO()
    sys.stderr = kept
    try:
        sys.excepthook(*told)
    except Exception:  # the script's own hook
        sys.__excepthook__(*told)
    finally:
        sys.stderr = shown
        text = kept.getvalue()
        if given.shadow:
            text = text.replace(given.shadow, "")
        with suppress(OSError), open(given.file(spec.TRACEBACK), "wb") as file:
            file.write(text.encode(errors="backslashreplace"))


def _import_from_copy(shadow: str) -> None:
    """Take the user's own modules from the copy, also where PYTHONPATH or a `.pth` names a folder.

    They may write beside their `__file__`.
    """

    def ours(path: str) -> str:
        copied = shadow + os.path.abspath(path)
        real = os.path.realpath(copied)
        library = path.startswith((sys.prefix, sys.base_prefix)) or "-packages" in path
        own = not library and os.path.isdir(real) and real.startswith(shadow + os.sep)
        return copied if own else path

    if shadow:
        sys.path[:] = map(ours, sys.path)
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(ours(path) if path else path for path in given)


def _reach_children() -> None:
    """Let each Python process that is started from here be watched from its start."""
    folder = os.path.dirname(os.path.abspath(children.__file__))
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, given] if given else [folder])


def exit_code(error: BaseException | None) -> int:
    """Return what Python would end with; a message in the place of a code goes to stderr."""
    if not isinstance(error, SystemExit):
        interrupted = isinstance(error, KeyboardInterrupt)
        return 128 + signal.SIGINT if interrupted else int(error is not None)
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
