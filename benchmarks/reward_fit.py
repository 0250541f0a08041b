"""Whole fits of a reward model by 03_reward_train.py's function, against the original's recipe."""

import contextlib
import io
import shutil
import time
from pathlib import Path

from benchmarks.compare import alternate
from benchmarks.original import OriginalFit, write_original_segment
from benchmarks.ours import NUM_ACTIONS, record_segments
from benchmarks.report import Row, Target, compared
from benchmarks.setup import Setup
from lib.preferences.labels import LabelLog
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.reward.config import FitConfig
from lib.reward.data import PREFERENCE1
from lib.reward.fit import fit

_TEACHER = "midwater"
_LABELS = 300
_EPOCHS = 2


def labelled_db(folder: Path, segments: int, labels: int) -> Path:
    """Clips of an untrained policy, compared by a simulated teacher."""
    record_segments(folder, segments, record_prob=0.05)
    label_with_teacher(folder, _TEACHER, labels)
    return folder


class OurFit:
    """A whole fit: labels and segments read, so many epochs, statistics, checkpoint."""

    def __init__(self, folder: Path, db: Path, epochs: int, dev: str) -> None:
        self._epochs = epochs
        self._config = FitConfig(
            dbs=[db], name="fit", out=folder, runs=folder / "runs", dev=dev, epochs=epochs, patience=epochs
        )

    def __call__(self) -> int:
        """Returns the number of labels used, the held-out ones included; those that share clips with both are left out."""
        with contextlib.redirect_stdout(io.StringIO()):
            fitted = fit(self._config)
        return self._epochs * (len(fitted.train) + len(fitted.test))


def theirs(folder: Path, db: Path, epochs: int) -> OriginalFit:
    """The original's recipe over the same labels, its pickles written first."""
    folder.mkdir()
    names = {name: folder / f"{at}.dat" for at, name in enumerate(SegmentDB(db).names)}
    for name, path in names.items():
        write_original_segment(path, db / name)
    pairs = [
        (names[label.sample1], names[label.sample2], PREFERENCE1[label.label])
        for label in LabelLog(db / "labels.json").read()
        if label.label is not None
    ]
    return OriginalFit(pairs, NUM_ACTIONS, epochs)


def against_original(setup: Setup) -> list[Row]:
    """In turns on few labels, because the original's is slow; then ours once on 300."""
    labels, epochs = (12, 1) if setup.quick else (40, _EPOCHS)
    db = labelled_db(setup.folder / "few", 2 * labels, labels)
    original = theirs(setup.folder / "pickles", db, epochs)
    ours = OurFit(setup.folder, db, epochs, setup.dev)
    result = alternate(ours, original, setup.repeats, 0.0)
    rows = [
        compared(
            "fit",
            "A reward fit at defaults, against the original's recipe at equal epochs",
            "labels/s",
            result,
            Target(5),
            f"whole fits, {epochs} epochs on {labels} labels of up to {2 * labels} clips; theirs rereads "
            "uncompressed pickles every epoch, both clips in fp32 on the CPU, batch 64, and writes nothing. Ours looks at every "
            f"{FitConfig.frame_stride}th step of a clip, at half size, theirs at all, whole.",
        )
    ]
    if setup.quick:
        return rows
    shutil.rmtree(setup.folder / "pickles")
    db = labelled_db(setup.folder / "many", 2 * _LABELS, _LABELS)
    whole = OurFit(setup.folder, db, _EPOCHS, setup.dev)
    began = time.perf_counter()
    whole()
    seconds = time.perf_counter() - began
    assert rows[0].theirs is not None
    their_seconds = _EPOCHS * _LABELS / rows[0].theirs
    rows.append(
        Row(
            "fit-300",
            f"A whole fit of {_EPOCHS} epochs on {_LABELS} labels, against the original's recipe",
            "s",
            seconds,
            their_seconds,
            their_seconds / seconds,
            target=Target(5),
            note=f"measured once; theirs scaled up from its labels/s in the row above. {2 * _LABELS} different clips, "
            f"reading them included: ours {seconds / _EPOCHS:.1f} s an epoch. By default a fit ends "
            f"{FitConfig.patience} epochs after its best.",
        )
    )
    return rows
