"""What is downloaded or made for all ranks: rank 0 goes first."""

from __future__ import annotations

import ast

from ....script.flow import argument, given
from ....script.roles import LoopNode
from ..context import Context

_FETCHERS = {
    "torchvision.datasets.utils.download_url", "urllib.request.urlretrieve", "torch.hub.load",
    "torch.hub.load_state_dict_from_url", "torch.hub.download_url_to_file", "datasets.load_dataset",
    "huggingface_hub.hf_hub_download", "huggingface_hub.snapshot_download", "nltk.download",
    "wget.download", "gdown.download", "kagglehub.dataset_download", "tiktoken.get_encoding",
    "requests.get", "urllib.request.urlopen",
}  # fmt: skip
_FETCHED = "rank 0 fetches first, then the others (rankup.rank0_first)"
_MADE = "rank 0 makes this first, then the others look (rankup.rank0_first)"
_MAKERS = {
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "os.system", "shutil.unpack_archive", "shutil.copytree", "numpy.save", "numpy.savez",
    "pickle.dump", "json.dump",
}  # fmt: skip
_MAKING_METHODS = {"extractall", "write_bytes", "write_text", "to_csv", "to_parquet", "save"}


def fetch(context: Context) -> None:
    """`rankup.rank0_first(…)` around downloads."""
    script = context.script
    wrapped = _prepared(context)
    for call in script.all(ast.Call):
        if not _fetches(context, call):
            continue
        above = list(script.above(call))
        if any(one in above for one in wrapped) or isinstance(script.scope(call), ast.Lambda):
            continue
        if script.per_sample(call):
            context.leave(
                call,
                "each rank fetches its own samples here, and nodes have no network: fetch all of "
                "them before the job",
            )
            continue
        asks = next(
            (one for one in above if isinstance(one, ast.If) and _asks_files(context, one)), None
        )
        if asks is not None and not _in_else(context, call, asks):
            if _alike(context, asks) and script.first_on_line(script.span(asks)[0]):
                context.indented(asks, "with rankup.rank0_first():")
                wrapped.append(asks)
                context.done(call, _FETCHED)
                continue
            context.leave(
                call, "all ranks may fetch this at once: put it in `with rankup.rank0_first():`"
            )
            continue
        (start, end), whole = script.span(call.func), script.span(call)
        opening = script.text.index("(", end, whole[1])
        context.edits.insert(start, "rankup.rank0_first(")
        context.edits.replace((opening, opening + 1), ", " if given(call) else "")
        wrapped.append(call)
        context.done(call, _FETCHED)


def _fetches(context: Context, call: ast.Call) -> bool:
    script = context.script
    name = script.name(call.func)
    last = name.split(".")[-1]
    if name in _FETCHERS or last in ("from_pretrained", "untar_data"):
        return True
    arg = argument(call, "download")
    if arg is not None and script.code(arg) == "True":
        return True
    if name.startswith("torchvision.models."):
        weights = argument(call, "weights") or argument(call, "pretrained", 0)
        return weights is not None and script.code(weights) not in ("None", "False")
    return False


def _asks_files(context: Context, one: ast.If) -> bool:
    code = context.script.code(one.test)
    return any(word in code for word in ("exists(", "isfile(", "isdir(", "is_file(", "is_dir("))


def _in_else(context: Context, node: ast.AST, asks: ast.If) -> bool:
    """Whether a place within `asks` lies in an `else:`, its own or that of a statement in it."""
    script, below = context.script, node
    for up in script.above(node):
        other = getattr(up, "orelse", None)
        chained = isinstance(below, ast.If) and script.code(below).startswith("elif")
        if isinstance(other, list) and below in other and not chained:
            return True
        if up is asks:
            break
        below = up
    return False


def _alike(context: Context, node: ast.If) -> bool:
    """Whether rank 0 may do all of it first: it ends where it began, and trains nothing."""
    script = context.script
    leaving = (ast.Return, ast.Break, ast.Continue, ast.Yield)
    leaves = any(True for _ in script.inside(node, *leaving, deep=False))
    saves = any(script.name(one.func) == "torch.save" for one in script.inside(node, ast.Call))
    return not leaves and not saves and not context.training.trains(node)


def _prepared(context: Context) -> list[ast.AST]:
    """`with rankup.rank0_first():` around `if not exists(data): make(data)`; what was wrapped."""
    script, wrapped = context.script, list[ast.AST]()
    for one in script.all(ast.If):
        maker = _maker(context, one)
        inside = any(isinstance(up, LoopNode) for up in script.above(one))
        if maker is None or inside or not _asks_files(context, one):
            continue
        if "not " not in script.code(one.test) or not _alike(context, one):
            continue
        if script.per_sample(one):
            continue
        if script.first_on_line(script.span(one)[0]):
            context.indented(one, "with rankup.rank0_first():")
            context.done(maker, _MADE)
            wrapped.append(one)
    return wrapped


def _maker(context: Context, node: ast.AST, depth: int = 0) -> ast.Call | None:
    """The first call that makes files, also in a function of the script."""
    script = context.script
    for call in script.inside(node, ast.Call):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        name = script.name(call.func)
        if name in _MAKERS or (method in _MAKING_METHODS and name != "torch.save"):
            return call
        function = script.called(call)
        if function is not None and depth < 3 and _maker(context, function, depth + 1):
            return call
    return None
