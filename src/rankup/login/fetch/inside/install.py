"""Puts everything in place in one Python process of the script's tree."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import accelerator, clients, devices, distributed, functions, writers
from .audit import Handler, Hook
from .databases import Databases
from .devices import Devices
from .ending import Ending
from .imports import AfterImport, Changes
from .journal import Journal
from .lazy import Lazy
from .made import Made
from .modules import Used
from .network import Network
from .outputs import Outputs
from .spawned import Spawned
from .spec import MAIN, Spec
from .training import Training
from .where import Places


@dataclass(frozen=True)
class Installed:
    """What the caller goes on with."""

    journal: Journal
    ending: Ending


def install(spec: Spec) -> Installed:
    """Watch this process from now on."""
    main = int(os.environ.get(MAIN, os.getpid()))
    journal = Journal(spec.events, Places(spec.script).where)
    hook, used = Hook(), Used()
    lazy = Lazy(spec, journal)
    ending = Ending(spec, journal, lazy, used, hook, main)
    outputs = Outputs(journal, Made(spec.events), spec.token, (spec.folder, spec.temporary))
    net = Network(journal, block=spec.block, main=main, used=lazy.used)
    training = Training(journal, lazy, ending)
    changes: Changes = {
        **_of_torch(spec, Devices(journal), training, lazy),
        **writers.changes(outputs, hook),
        "torch.hub": [used.watch_hub],
        "http.client": [lambda module: clients.watch_http(module, net)],
        "httpx": [lambda module: clients.watch_httpx(module, net)],
        "httpx2": [lambda module: clients.watch_httpx(module, net)],
        "aiohttp": [lambda module: clients.watch_aiohttp(module, net)],
    }
    # Without these the script would not be stopped, and train to its end on a login node.
    needed = (lazy.watch_loaders, training.watch_loader, training.watch_modules)
    AfterImport(changes, journal, needed, ending.refuse).install()
    hook.install(_handlers(outputs, net, Spawned(journal, outputs.handed)))
    return Installed(journal, ending)


def _handlers(outputs: Outputs, net: Network, spawned: Spawned) -> dict[str, Handler]:
    return {
        "open": outputs.opened,
        "os.rename": outputs.renamed,
        "os.remove": outputs.removed,
        "os.rmdir": outputs.empty_folder_removed,
        "shutil.rmtree": outputs.folder_removed,
        "os.mkdir": outputs.folder_made,
        "os.link": outputs.linked,
        "os.symlink": outputs.linked,
        "os.truncate": outputs.cut,
        "os.chmod": outputs.mode_changed,
        "sqlite3.connect": Databases(outputs).connected,
        "socket.connect": net.connected,
        "socket.sendto": net.sent,
        "socket.sendmsg": net.sent,
        "socket.getaddrinfo": net.looked_up,
        "socket.gethostbyname": net.looked_up,
        "subprocess.Popen": spawned.popen,
        "os.system": spawned.shell,
        "os.exec": spawned.started,
        "os.posix_spawn": spawned.started,
    }


def _of_torch(spec: Spec, mapped: Devices, training: Training, lazy: Lazy) -> Changes:
    return {
        "torch": [
            lambda module: accelerator.stand_in(module, mapped, spec.pretend_gpu),
            *functions.changes(mapped),
            lambda module: functions.limit_threads(module, spec.threads),
            lambda module: devices.redirect(module, mapped),
        ],
        "torch.nn.modules.module": [training.watch_modules],
        "torch.autograd": [training.watch_autograd],
        "torch.optim.optimizer": [training.watch_optimizers],
        "torch.utils.data.dataloader": [
            lambda module: functions.limit_loader(module, spec.threads),
            lazy.watch_loaders,
            training.watch_loader,
        ],
        "torch.nn.parallel.distributed": [functions.redirect_parallel],
        "torch.nn.parallel.data_parallel": [functions.redirect_data_parallel],
        "torch.distributed.distributed_c10d": [lambda one: distributed.redirect(one, mapped)],
        "torch.distributed.device_mesh": [lambda one: distributed.redirect_mesh(one, mapped)],
    }
