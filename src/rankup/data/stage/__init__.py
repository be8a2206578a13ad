"""Copies of packs in the memory of a node, which `rankup.data.open` finds by itself. No torch.

    <base>/rankup-<uid>/            base: $RANKUP_STAGE_DIR, else /dev/shm or $TMPDIR; mode 0700
        .lock                       held (flock) by the one process that copies
        job-<id>.<attempt>/         of a job, which removes it at its end; `run-<pid>` of a run on
                                    this machine; `by-hand` outside of both
            <key>/                  one source
                part/NAME           what is being copied
                data/NAME           the copy: a file, or a folder with its files
                index.npz           the index, so that the source is not asked again; without
                                    samples of tokens, and of a file that is no pack
                ready.json          the marker, written last
            mounts/                 SquashFS images that the job has mounted
            sent/                   what `sbcast` has brought, until it is moved into a copy

`place` names the folders and reads the marker; `memory` says what
fits. `staging` has the order in which a copy is made, by `copying`, which compares the hashes; it
lists and removes copies. `mount` mounts images.
"""
