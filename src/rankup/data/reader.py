"""`PackedDataset`: the samples of any container as a torch data set."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset

from ..base.errors import UserError
from ..runtime.keys import derive
from . import indexes, stamp, transforms
from .batches import BatchRequest
from .errors import BadContainer
from .fetch import ASKED, Bad, BadSample, Made, SharedTally, allocate
from .index import Field, Int64s, data_path
from .opened import Samples, open
from .transforms import Shaped, Transform

OnBad = Literal["raise", "drop"]
_LOOK = 30.0  # seconds between looks at the files
_TRIES = 20  # samples that are tried in the place of a bad one
# Never the fault of a sample.
_MISTAKES = (TypeError, NameError, AttributeError, ImportError, MemoryError)


class PackedDataset(Dataset[Any]):
    """Samples of a pack, or of any container that `rankup.data.open` reads, for training.

    An item is `(input, label)`, or the input alone where the data has no labels.

        photos = PackedDataset("imagenet.h5", "train", rankup.data.photos.RandomResizedCrop(224))
        loader = Loader(photos, global_batch=1024, seed=1)

    Works in torch's own DataLoader too (`__getitems__`), under fork, spawn and forkserver; call
    `set_epoch` there before each epoch, as for a DistributedSampler: without it every epoch has the
    same augmentation, which is warned of once. Data sets of others around this one are as good in a
    Loader, as long as they take its items in the thread that asks for theirs.

    Args:
        path: a file or a folder.
        split: its name; may be left away where there is one alone.
        transform: function of (bytes, rng); of several fields it gets a dict. Without one, arrays
            become tensors and the rest stays bytes.
        field: the field, or several; by default the first one.
        labels: whether items have labels; by default where the data has any.
        seed: that augmentation is drawn from, with epoch and sample; the Loader's own comes first.
        on_bad: what to do about a sample that cannot be made: `raise`, or `drop` it; in training
            its gradient is then zero, the others weigh what they would have weighed. Where nothing
            is left of a batch, a sample stands in that does not count. Errors that are surely in
            the transform's own code (TypeError, NameError, AttributeError, ImportError) are always
            raised. A Loader counts bad samples, as do the workers of torch's own DataLoader: they
            say so on stderr, and stop at more than one in a hundred. Behind torch's DataLoader, and
            with `shard`, gradients are weighed by what was sharded, not by what was left: there
            they are not the same on any number of ranks.
        verify: compare each sample's bytes with its hash as they are read.

    Raises:
        UserError: there is nothing at `path`, no such split or field, nothing to verify with, or
            the transform is no function of two arguments.
        BadContainer: it is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        transform: Transform | None = None,
        *,
        field: str | tuple[str, ...] | None = None,
        labels: bool | None = None,
        seed: int = 0,
        on_bad: OnBad = "raise",
        verify: bool = False,
    ) -> None:
        if on_bad not in ("raise", "drop"):
            raise UserError(f"on_bad={on_bad!r} is not known: raise, or drop")
        transforms.check(transform)
        samples = open(path)
        if split is None and len(samples.splits) > 1:
            known = ", ".join(samples.splits)
            raise UserError(f"{samples.root} has several splits, name one of them: {known}")
        self.samples: Samples = samples if split is None else samples.split(split)
        self.transform = transform
        self.field = field
        self.seed = seed
        self.on_bad: OnBad = on_bad
        self.verify = verify
        index = samples.index
        names = field if isinstance(field, tuple) else (field,)
        self.fields = tuple(index.field(name) for name in names)
        if labels and index.labels is None:
            raise UserError(f"{samples.root} has no labels")
        self._labelled = index.labels is not None and labels is not False
        if verify and any(one.hash is None for one in self.fields):
            raise UserError(
                f"{samples.root} has no hashes to verify its samples with; `rankup pack` makes them"
            )
        self._rows: Int64s | None = None
        # Seen by workers that are there already.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._tally = SharedTally()
        self._seen = _seen(self.samples)
        self._checked: tuple[object, ...] = ()  # in which process, epoch and time

    def __len__(self) -> int:
        return len(self.samples) if self._rows is None else len(self._rows)

    @property
    def epoch(self) -> int:
        """That augmentation is drawn from where no Loader says which."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that augmentation is drawn from, also for workers that run already."""
        self._epoch.fill_(epoch)

    def row(self, sample: int) -> int:
        """The number in `samples` of a sample of this data set, which may be a subset."""
        return sample if self._rows is None else int(self._rows[sample])

    def rows(self, samples: Int64s) -> Int64s:
        """Return `row` of many: int64 of the same shape."""
        return samples if self._rows is None else self._rows[samples]

    @property
    def labels(self) -> Int64s | None:
        """int64 (n,): the class of each sample, -1 where it has none; None without labels."""
        labels = self.samples.index.labels
        return None if labels is None else self._own(labels)

    @property
    def lengths(self) -> Int64s:
        """int64 (n,): bytes of each sample; -1 where that is not known before it is read."""
        return self._own(self.fields[0].length)

    def _own(self, column: Int64s) -> Int64s:
        """Return what a column of the index has for the samples of this data set."""
        split = column[self.start : self.start + len(self.samples)]
        return split if self._rows is None else split[self._rows]

    @property
    def start(self) -> int:
        """The first row of the split in the index."""
        return self.samples.start

    def subset(self, samples: npt.ArrayLike) -> PackedDataset:
        """Some samples of this data set, by their numbers; files that are open are shared.

        Augmentation stays that of the sample, whatever subset it is in.

        Raises:
            IndexError: there is no such sample.
        """
        chosen = np.asarray(samples, dtype=np.int64).reshape(-1)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"a subset of {len(self)} samples cannot have a sample beyond them")
        part = PackedDataset.__new__(PackedDataset)
        part.__dict__.update(self.__dict__)
        part._rows = chosen if self._rows is None else self._rows[chosen]
        return part

    def check(self, epoch: int | None = None) -> None:
        """Look whether the files are still the ones that were opened.

        Where a staged copy is gone, and its source is as it was, that is read from now on.

        Args:
            epoch: look only once in it and every half minute, in each process.

        Raises:
            BadContainer: one was changed, replaced or removed.
        """
        now = (os.getpid(), epoch, time.monotonic() // _LOOK)
        if epoch is not None and self._checked == now:
            return
        staged = self.samples.staged
        if staged is not None and not staged.exists():
            self.samples = self.samples.from_source()
        if self.samples.staged is None:
            for one in self._seen:
                _compare(one)
        self._checked = now

    def __getitem__(self, sample: int) -> Any:
        if sample < 0:
            sample += len(self)
        if not 0 <= sample < len(self):
            raise IndexError(f"no sample {sample}: there are {len(self)}, from 0 on")
        made = self._counted([sample])
        if not made.count:
            raise BadSample(
                f"sample {sample} was dropped, and one sample alone cannot be left out: take "
                f"batches (__getitems__)"
            )
        return made.items()[0]

    def __getitems__(self, samples: BatchRequest | Sequence[int]) -> list[Any]:
        """The items of a batch: views of one tensor, where the transform says their shape.

        Those that are dropped are not among them; where that leaves none, one stands in.
        """
        return self._counted(samples).items()

    def _counted(self, samples: BatchRequest | Sequence[int]) -> Made:
        """Make a batch; the Loader around it, or the tally of torch's, counts bad samples."""
        request, asked = samples, ASKED.get()
        if not isinstance(request, BatchRequest):
            seed, epoch = self.seed, self.epoch
            if asked is not None:
                seed, epoch = asked[0].seed, asked[0].epoch
            request = BatchRequest.of(np.asarray(samples, np.int64), seed, epoch)
        made = self.make(request)
        if asked is not None:
            asked[1].extend(made.bad)
            return made
        whole = len(self.samples)
        self._tally.add(request.epoch, len(request), made.bad, whole)
        if made.drew and request is not samples:  # parts of one data set count together
            self._tally.warn_of_repeats(request.epoch, whole if self._rows is None else 2 * whole)
        return made

    def make(self, request: BatchRequest) -> Made:
        """Read and transform the samples of one batch.

        Raises:
            BadSample: one cannot be made, and that is not to be gone on with.
            BadContainer: the files are not the ones any more that were opened.
        """
        self.check(request.epoch)
        whole = self._arrays(request)
        if whole is not None:
            return whole
        key = transforms.key_of(request.seed, request.epoch)
        batch = _Batch(self.transform, len(request), key)
        bad: list[Bad] = []
        for sample in request:
            self._add(sample, batch, bad)
        count = min(request.count, len(batch.rows))
        if not batch.rows and len(request):  # this rank steps with the others
            self._stand_in(request[0], key, batch, bad)
        labels = self._labels_of(np.asarray(batch.rows, np.int64))
        return Made(request, batch.inputs(), labels, count, bad, batch.generators.used())

    def _arrays(self, request: BatchRequest) -> Made | None:
        """Rows of an array all at once; None where samples are to be made one by one."""
        about = self.fields[0]
        if self.transform is not None or self.verify or isinstance(self.field, tuple):
            return None
        if not about.dtype or not len(request):
            return None
        rows = self.rows(request.samples)
        try:
            inputs = allocate((len(rows), *about.shape), about.dtype)
            self.samples.arrays(rows, about.name, inputs.numpy())
        except (BadContainer, OSError, TypeError):  # which sample it is, is found one by one
            return None
        return Made(request, inputs, self._labels_of(rows), request.count)

    def _add(self, sample: int, batch: _Batch, bad: list[Bad]) -> bool:
        """Make a sample; return whether that could be done."""
        row = self.row(sample)
        try:
            batch.add(row, self._read(row))
        except _MISTAKES as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"at the sample {self.samples.path(row)}")
            raise
        except Exception as error:
            bad.append(self._bad(sample, row, error))
            return False
        return True

    def _stand_in(self, sample: int, key: int, batch: _Batch, bad: list[Bad]) -> None:
        """Make another sample, which does not count: the same on any rank and in any worker."""
        for attempt in range(_TRIES):
            other = derive(key, "replace", self.row(sample), attempt) % len(self)
            if self._add(other, batch, bad):
                return
        raise BadSample(
            f"{_TRIES} samples tried in the place of a bad one are bad, too; the last is "
            f"{bad[-1].name}: {bad[-1].why}"
        )

    def _read(self, row: int) -> Any:
        if isinstance(self.field, tuple):
            return {one.name: self._value(row, one) for one in self.fields}
        return self._value(row, self.fields[0])

    def _value(self, row: int, field: Field) -> Any:
        samples = self.samples
        if field.dtype and not self.verify:
            return samples.array(row, field.name)
        data = samples.read(row, field.name)
        if self.verify:
            assert field.hash is not None
            found, noted = xxhash.xxh3_64_intdigest(data), int(field.hash[self.start + row])
            if found != noted:
                raise BadContainer(f"its bytes have the hash {found:016x}, and had {noted:016x}")
        return samples.array(row, field.name) if field.dtype else data

    def _bad(self, sample: int, row: int, error: Exception) -> Bad:
        name = self.samples.path(row)
        why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if self.on_bad == "raise":
            raise BadSample(
                f"{name} in {self.samples.root} cannot be made (sample {sample}): {why}. "
                f"on_bad='drop' would go on without it"
            ) from error
        return Bad(sample, name, why)

    def _labels_of(self, rows: Int64s) -> Int64s | None:
        known = self.samples.index.labels
        return known[rows + self.start] if self._labelled and known is not None else None


class _Batch:
    """The samples of a batch that are made, in one array where the transform says their shape."""

    def __init__(self, transform: Transform | None, count: int, key: int) -> None:
        self.rows: list[int] = []
        self.generators = transforms.Generators(key)
        self._transform, self._key = transform, key
        self._items: list[Any] = []
        # Asked once: to see whether it is one takes microseconds.
        self._shaped = transform if isinstance(transform, Shaped) else None
        if self._shaped is not None:
            shape = (max(1, count), *self._shaped.shape)
            self._whole = allocate(shape, self._shaped.dtype)
            self._out = self._whole.numpy()

    def add(self, row: int, data: Any) -> None:
        if self._shaped is not None:
            self._shaped.into(data, self.generators.of(row), self._out[len(self.rows)])
        elif self._transform is not None:
            transforms.seed_process(self._key, row)
            self._items.append(self._transform(data, self.generators.of(row)))
        else:
            self._items.append(plain(data))
        self.rows.append(row)

    def inputs(self) -> Any:
        if self._shaped is None:
            return self._items
        inputs = self._whole[: len(self.rows)]
        return inputs.permute(0, 3, 1, 2) if self._shaped.channels_last else inputs


def plain(data: Any) -> Any:
    """An item without a transform: arrays as tensors, bytes as they are."""
    if isinstance(data, dict):
        return {name: plain(value) for name, value in data.items()}
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data.copy())  # what is mapped may not be written to
    return bytes(data)


def _seen(samples: Samples) -> list[stamp.Look]:
    """Return the files of a container as they are, of many some, and its index.

    Each costs a look at the file system, at every start of an epoch in every worker. Nothing where
    a copy is read and its source cannot be seen.

    Raises:
        BadContainer: one is not there.
    """
    count = len(samples.index.files)
    paths = [data_path(samples.root, samples.index.files, row) for row in stamp.some(count)]
    index = indexes.place(samples.root)
    if index.is_file():
        paths.append(index)
    try:
        return [_look(str(path)) for path in paths]
    except BadContainer:
        if samples.staged is None:
            raise
        return []


def _compare(before: stamp.Look) -> None:
    now = _look(before.path)
    change = before.change(now)
    if change:
        raise BadContainer(
            f"{before.path} was {change} while this job reads it ({before.size} bytes then, "
            f"{now.size} now): what is trained on would change in the middle of a run. Let new "
            f"data have a name of its own, and start the job again"
        )


def _look(path: str) -> stamp.Look:
    try:
        return stamp.look(path)
    except OSError as error:
        raise BadContainer(
            f"{path} cannot be found any more, and the job still reads it: {error.strerror}"
        ) from None
