"""Segments cut out of scripted games, whose every frame tells the environment and the step it belongs to."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.agent.exploration import HeldActions
from lib.envs.make import counter, make_world
from lib.envs.seaquest import SurfaceCounter
from lib.envs.world import Step
from lib.files import NotRecorded
from lib.preferences.events import LARGE_SCORE, LOST_LIFE, NOVELTY, Events, _Novelty, _Rare, kinds_of
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SEGMENT_LENGTH
from tests.disk import disk_full_after

Moments = Collection[tuple[int, int]]
"""Pairs of environment and step."""


def make(
    db: Path, num_envs: int = 3, record_prob: float = 1.0, seed: int = 0, max_mb: float | None = None
) -> SegmentRecorder:
    return SegmentRecorder(db, num_envs, "Scripted-v0", 200, record_prob, seed, max_mb, policy="model.dat")


class Flashes:
    """Counts the frames of given brightness in the first channel, in every environment."""

    def __init__(self, num_envs: int, *bright: int) -> None:
        self._counts, self._bright = np.zeros(num_envs), bright

    def push(self, frames: np.ndarray) -> None:
        self._counts += np.isin(frames[:, 0, 0, 0], self._bright)

    def counts(self) -> dict[str, np.ndarray]:
        return {"flashs": self._counts.copy()}


def watching(db: Path, *flashes: int, record_prob: float = 0.0, **options: Any) -> SegmentRecorder:
    """Watches the first two of three environments for flashes and lost lives."""
    events = Events(["flash", LOST_LIFE], 2, Flashes(2, *flashes))
    return SegmentRecorder(db, 3, "Scripted-v0", 200, record_prob, 0, events=events, **options)


def play(
    recorder: SegmentRecorder,
    steps: int,
    terminals: Moments = (),
    resets: Moments = (),
    first: int = 0,
) -> None:
    """Feed `steps` steps: at t, environment e shows pixels (t, e, 77), acts t mod 200 and scores t + e / 10."""
    num_envs = len(recorder.recording)
    frames = np.empty((num_envs, 4, 5, 3), np.uint8)
    envs = np.arange(num_envs)
    for t in range(first, first + steps):
        frames[..., 0], frames[..., 1], frames[..., 2] = t % 256, envs[:, None, None], 77
        recorder.before(frames, np.full(num_envs, t % 200))
        frames[:] = 255  # the world may reuse its buffer
        recorder.after(
            Step(
                frames=frames,
                score=(t + envs / 10).astype(np.float32),
                terminal=np.array([(e, t) in terminals for e in range(num_envs)]),
                truncated=np.zeros(num_envs, bool),
                reset=np.array([(e, t) in resets for e in range(num_envs)]),
            )
        )


def first_steps(db: Path) -> dict[str, int]:
    """By segment, the step whose frame it begins with."""
    segments = SegmentDB(db)
    return {name: int(segments.load(name).frames[0, 0, 0, 0]) for name in segments.names}


def test_a_segment_holds_what_the_actions_were_chosen_on_and_led_to(tmp_path: Path) -> None:
    recorder = make(tmp_path / "new" / "db")
    recorder.origin = {"run": "runs/x", "seed": "0"}
    play(recorder, 120, terminals={(1, 20), (1, 120)})
    recorder.close()
    db = SegmentDB(tmp_path / "new" / "db")
    assert db.names == [f"{e:02d}/{3 * t:08d}.dat" for e in range(3) for t in (0, 50)]
    assert recorder.stored == 6
    assert recorder.stored_bytes == sum((db.root / name).stat().st_size for name in db.names)
    for name in db.names:
        segment = db.load(name)
        env, t = int(name[:2]), np.arange(50) + int(name[3:11]) // 3
        assert segment.frames.shape == (SEGMENT_LENGTH, 4, 5, 3)
        assert (segment.frames[..., 0] == t[:, None, None]).all()
        assert (segment.frames[..., 1] == env).all()
        assert (segment.frames[..., 2] == 77).all()
        assert np.array_equal(segment.actions, t)
        assert segment.sidecar is not None
        np.testing.assert_allclose(segment.sidecar.scores, t + env / 10, rtol=1e-6)
        assert np.array_equal(segment.sidecar.life_lost, (t == 20) & (env == 1))
        assert not segment.sidecar.game_over.any()
        assert segment.sidecar.env_id == "Scripted-v0"
        assert segment.sidecar.num_actions == 200
        assert segment.sidecar.policy == "model.dat"
        assert segment.sidecar.origin == {"run": "runs/x", "seed": "0"}
        assert segment.sidecar.step == 3 * t[0]


def test_never_crosses_a_reset(tmp_path: Path) -> None:
    # Game over at 69 after 20 steps of a second segment; the action of step 70 was ignored; a new game from 71 on.
    play(make(tmp_path, num_envs=2), 125, terminals={(0, 69)}, resets={(0, 70)})
    assert first_steps(tmp_path) == {
        "00/00000000.dat": 0,
        "00/00000142.dat": 71,
        "01/00000000.dat": 0,
        "01/00000100.dat": 50,
    }


@pytest.mark.parametrize("over", [True, False])
def test_tells_a_game_over_from_a_lost_life(tmp_path: Path, over: bool) -> None:
    recorder = make(tmp_path, num_envs=1)
    play(recorder, 50, terminals={(0, 49)})
    assert recorder.stored == 0  # which of the two it was shows with the next step
    play(recorder, 1, resets={(0, 50)} if over else (), first=50)
    sidecar = SegmentDB(tmp_path).load("00/00000000.dat").sidecar
    assert sidecar is not None
    assert sidecar.life_lost.tolist() == [False] * 49 + [True]
    assert sidecar.game_over.tolist() == [False] * 49 + [over]
    assert recorder.recording[0]


def test_begins_with_the_asked_probability(tmp_path: Path) -> None:
    recorder = make(tmp_path, num_envs=50, record_prob=0.01, seed=3)
    begun, free = 0, 0
    for t in range(200):
        was = recorder.recording.copy()
        play(recorder, 1, first=t)
        begun += int((recorder.recording & ~was).sum())
        free += int((~was).sum())
    assert 0.007 < begun / free < 0.013  # three standard deviations
    assert first_steps(tmp_path)


def test_a_seed_decides_what_is_recorded(tmp_path: Path) -> None:
    names = []
    for run, seed in enumerate((0, 0, 1)):
        play(make(tmp_path / str(run), record_prob=0.01, seed=seed), 400)
        names.append(SegmentDB(tmp_path / str(run)).names)
    assert names[0] == names[1] != names[2]
    assert 3 <= len(names[0]) <= 12


def test_records_nothing_when_not_asked_to(tmp_path: Path) -> None:
    recorder = make(tmp_path, record_prob=0)
    play(recorder, 200)
    assert not recorder.recording.any()
    assert SegmentDB(tmp_path).names == []


def test_goes_on_behind_what_a_db_holds(tmp_path: Path) -> None:
    play(make(tmp_path), 100)
    held = {path: path.read_bytes() for path in tmp_path.glob("*/*.dat")}
    play(make(tmp_path, num_envs=1), 100)
    assert all(path.read_bytes() == data for path, data in held.items())
    names = SegmentDB(tmp_path).names
    assert len(names) == 8
    assert names[2:4] == ["00/00000151.dat", "00/00000201.dat"]
    sidecar = SegmentDB(tmp_path).load(names[3]).sidecar
    assert sidecar is not None
    assert sidecar.step == 50


def test_two_recorders_on_one_db_overwrite_nothing(tmp_path: Path) -> None:
    one, other = make(tmp_path, num_envs=1), make(tmp_path, num_envs=1)
    play(one, 50)
    play(other, 50)
    play(one, 50, first=50)
    assert first_steps(tmp_path) == {"00/00000000.dat": 0, "00/00000001.dat": 0, "00/00000050.dat": 50}


def test_stops_when_the_db_is_full(tmp_path: Path) -> None:
    probe = make(tmp_path, num_envs=1)
    play(probe, 50)
    recorder = make(tmp_path, max_mb=2.5 * probe.stored_bytes / 1e6)  # one lies there, two of three fit
    play(recorder, 160)
    assert recorder.full
    assert recorder.stored == 2
    assert len(SegmentDB(tmp_path).names) == 3
    assert not recorder.recording.any()
    assert recorder.obstacle == "DB full"
    assert make(tmp_path, max_mb=1e-6).full
    assert not make(tmp_path).full


def test_games_too_short_for_any_segment_are_said(tmp_path: Path) -> None:
    recorder = make(tmp_path, num_envs=1)
    play(recorder, 19 * 40, resets={(0, t) for t in range(39, 800, 40)})
    assert recorder.obstacle == ""
    play(recorder, 40, resets={(0, 799)}, first=760)
    assert recorder.obstacle == "no game lasts the 50 steps of a clip"
    play(recorder, 60, first=800)
    assert recorder.stored == 1
    assert recorder.obstacle == ""


def test_close_drops_what_is_unfinished(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    play(recorder, 49)
    recorder.close()
    recorder.close()
    play(recorder, 60)
    assert recorder.stored == 0


def test_a_full_disk_is_said_with_the_path_and_leaves_no_half_file(tmp_path: Path) -> None:
    recorder = make(tmp_path, num_envs=2)
    play(recorder, 49)
    with disk_full_after(100), pytest.raises(OSError, match=r"00/00000000\.dat"):
        play(recorder, 1, first=49)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    # Whoever catches it may go on: what is recorded later is whole.
    play(recorder, 60, first=50)
    assert first_steps(tmp_path) == {"00/00000100.dat": 50, "01/00000100.dat": 50}


def test_a_db_that_went_away_is_said_with_its_path(tmp_path: Path) -> None:
    db = tmp_path / "db"
    recorder = make(db)
    db.rmdir()
    with pytest.raises(NotRecorded, match=f"No such file.*{db}"):
        play(recorder, 50)
    assert not db.exists()


def test_a_folder_that_is_a_file_ends_the_recording(tmp_path: Path) -> None:
    (tmp_path / "00").write_text("")
    with pytest.raises(NotRecorded, match=r"File exists: .*00/00000000\.dat"):
        play(make(tmp_path), 50)


def test_a_resumed_recorder_counts_on_and_overwrites_nothing(tmp_path: Path) -> None:
    first = make(tmp_path)
    play(first, 60)
    state = first.state()
    play(first, 60, first=60)  # lost with the process; its segments are not
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*.dat")}
    second = make(tmp_path)
    second.restore(state)
    assert (second.steps, second.stored) == (180, 3)
    play(second, 120, first=60)
    assert all(path.read_bytes() == content for path, content in before.items())
    names = {path.name for path in (tmp_path / "00").iterdir()}
    # The second one of the first run began at step 50, number 150; the resumed run's at 60 and 110.
    assert names == {"00000000.dat", "00000150.dat", "00000180.dat", "00000330.dat"}


def test_clips_of_the_first_ranks_state_are_counted_once(tmp_path: Path) -> None:
    first = make(tmp_path)
    play(first, 60)
    assert first.stored > 0
    other = SegmentRecorder(tmp_path, 3, "Scripted-v0", 200, 1.0, 0, first_env=3)
    other.restore(first.state())
    assert (other.steps, other.stored) == (first.steps, 0)


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "00"
    folder.mkdir()
    stale, young, other = ".00000000.dat.12-0a1b2c3d.tmp", ".00000003.dat.13-0a1b2c3d.tmp", "notes.tmp"
    for name in (stale, young, other):
        (folder / name).write_bytes(b"half a segment")
    for name in (stale, other):
        os.utime(folder / name, (0, 0))
    make(tmp_path)
    assert {path.name for path in folder.iterdir()} == {young, other}


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        (["NOOP", "FIRE"], ("NOOP", "FIRE")),
        (["NOOP", "x" * 200], ("NOOP", "x" * 100)),
        (["NOOP"], ()),
        (["0", "1"], ()),
        ([], ()),
    ],
)
def test_action_names_go_into_the_sidecar(
    tmp_path: Path, given: list[str], recorded: tuple[str, ...]
) -> None:
    recorder = SegmentRecorder(tmp_path, 1, "Scripted-v0", 2, 1.0, 0, action_names=given)
    for _ in range(SEGMENT_LENGTH):
        recorder.before(np.zeros((1, 4, 5, 3), np.uint8), np.zeros(1, np.int64))
        off = np.zeros(1, bool)
        recorder.after(Step(np.zeros((1, 4, 5, 3), np.uint8), np.zeros(1, np.float32), off, off, off))
    sidecar = SegmentDB(tmp_path).load("00/00000000.dat").sidecar
    assert sidecar is not None
    assert sidecar.action_names == recorded


def test_a_clip_of_an_event_ends_10_to_14_steps_after_it(tmp_path: Path) -> None:
    recorder = watching(tmp_path, 100)
    recorder.policy = "p.dat"
    assert recorder.recording.tolist() == [True, True, False]
    play(recorder, 120, terminals={(0, 130)})
    db = SegmentDB(tmp_path)
    assert [name[:2] for name in db.names] == ["00", "01"]
    for name in db.names:
        segment, env = db.load(name), int(name[:2])
        t = np.arange(50) + segment.frames[0, 0, 0, 0]
        assert 110 <= t[-1] <= 114  # frame 100 shows the flash
        assert (segment.frames[..., 0] == t[:, None, None]).all()
        assert (segment.frames[..., 1] == env).all()
        assert np.array_equal(segment.actions, t)
        assert segment.sidecar is not None
        np.testing.assert_allclose(segment.sidecar.scores, t + env / 10, rtol=1e-6)
        assert (segment.sidecar.reason, segment.sidecar.policy) == ("flash", "p.dat")
        assert segment.sidecar.of_event
        assert segment.sidecar.step == 3 * t[0] == int(name[3:11])


def test_ends_of_event_clips_are_drawn(tmp_path: Path) -> None:
    last = set()
    for seed in range(40):
        events = Events(["flash"], 1, Flashes(1, 60))
        db = tmp_path / str(seed)
        play(SegmentRecorder(db, 1, "Scripted-v0", 200, 0.0, seed, events=events), 80)
        last |= {first + 49 for first in first_steps(db).values()}
    assert last == {70, 71, 72, 73, 74}


def test_a_lost_life_is_an_event_and_shows_in_the_next_frame(tmp_path: Path) -> None:
    play(watching(tmp_path), 120, terminals={(1, 69), (2, 69)})
    (name,) = SegmentDB(tmp_path).names
    sidecar = SegmentDB(tmp_path).load(name).sidecar
    assert sidecar is not None
    assert sidecar.reason == LOST_LIFE
    assert 80 <= first_steps(tmp_path)[name] + 49 <= 84
    assert sidecar.life_lost.sum() == 1
    assert not sidecar.game_over.any()


@pytest.mark.parametrize("cut", [True, False])
def test_a_clip_of_an_event_ends_with_its_game(tmp_path: Path, cut: bool) -> None:
    recorder = watching(tmp_path, 77)
    terminals = {(0, 79)}
    play(recorder, 80, terminals)
    assert recorder.stored == 0
    if cut:
        recorder.cut(np.array([True, False, False]))
    play(recorder, 60, resets=() if cut else {(0, 80)}, first=80)
    db = SegmentDB(tmp_path)
    first = first_steps(tmp_path)
    assert first["00/00000090.dat"] == 30
    sidecar = db.load("00/00000090.dat").sidecar
    assert sidecar is not None
    assert sidecar.game_over.tolist() == [False] * 49 + [True]
    assert sidecar.reason == "flash"
    assert [name[:2] for name in db.names] == ["00", "01"]


def test_a_game_too_young_for_a_clip_of_its_event_gives_none(tmp_path: Path) -> None:
    play(watching(tmp_path, 101, 125), 200, resets={(0, 90), (1, 90)})
    # After the flash of 125 a clip of 50 steps would begin before 91.
    assert not first_steps(tmp_path)
    play(watching(tmp_path, 126 + 4), 200, resets={(0, 90), (1, 90)})
    assert all(first >= 91 for first in first_steps(tmp_path).values())
    assert len(first_steps(tmp_path)) == 2


def test_no_two_clips_share_a_step(tmp_path: Path) -> None:
    recorder = watching(tmp_path, *range(10, 250, 3), record_prob=0.02)
    play(recorder, 250, terminals={(0, t) for t in range(7, 250, 20)})
    db = SegmentDB(tmp_path)
    seen: dict[str, list[int]] = {}
    for name, first in first_steps(tmp_path).items():
        seen.setdefault(name[:2], []).extend(range(first, first + 50))
    assert all(len(set(steps)) == len(steps) for steps in seen.values())
    sidecars = [db.load(name).sidecar for name in db.names]
    reasons = [sidecar.reason for sidecar in sidecars if sidecar is not None]
    assert {"random", "flash"} <= set(reasons)


def test_random_clips_are_the_same_with_and_without_events(tmp_path: Path) -> None:
    def at_random(db: Path) -> list[str]:
        sidecars = {name: SegmentDB(db).load(name).sidecar for name in SegmentDB(db).names}
        return [name for name, sidecar in sidecars.items() if sidecar and sidecar.reason == "random"]

    play(watching(tmp_path / "with", *range(0, 250, 7), record_prob=0.01), 250)
    play(make(tmp_path / "without", record_prob=0.01), 250)
    assert at_random(tmp_path / "with") == at_random(tmp_path / "without") != []
    assert len(SegmentDB(tmp_path / "with").names) > len(at_random(tmp_path / "with"))


def test_events_are_recorded_with_the_asked_probability(tmp_path: Path) -> None:
    play(watching(tmp_path / "never", 60, 120, 180, event_prob=0.0), 250)
    assert not first_steps(tmp_path / "never")
    events = Events([LOST_LIFE], 50)
    recorder = SegmentRecorder(tmp_path / "some", 50, "S-v0", 200, 0.0, 0, events=events, event_prob=0.3)
    play(recorder, 250, terminals={(e, t) for e in range(50) for t in (60, 120, 180)})
    assert 25 <= recorder.stored <= 65  # of 150


def test_event_clips_keep_to_the_limit_of_a_db(tmp_path: Path) -> None:
    probe = watching(tmp_path, 60)
    play(probe, 80)
    recorder = watching(tmp_path, 60, 130, max_mb=1.5 * probe.stored_bytes / 1e6)
    play(recorder, 150)
    assert (recorder.full, recorder.stored) == (True, 1)
    assert not recorder.recording.any()
    dropping = watching(tmp_path, 60, 130, max_mb=1.5 * probe.stored_bytes / 1e6, drop_oldest=True)
    play(dropping, 150)
    assert dropping.stored == 4
    assert len(SegmentDB(tmp_path).names) <= 3


def test_a_resumed_recorder_forgets_the_events_under_way(tmp_path: Path) -> None:
    first = watching(tmp_path, 60)
    play(first, 65)
    state = first.state()
    second = watching(tmp_path, 60, 140)
    play(second, 65)
    second.restore(state)
    play(second, 92, first=65)
    assert all(65 <= start <= 105 for start in first_steps(tmp_path).values())
    assert second.stored == 2
    assert int(SegmentDB(tmp_path).names[0][3:11]) >= 3 * 65


def test_large_scores_are_above_the_99th_percentile_of_the_last(tmp_path: Path) -> None:
    events, on = Events([LARGE_SCORE], 1), np.zeros(1, bool)
    found = []
    for t in range(1000):
        score = 500.0 if t in (50, 600) else float(t % 10)  # the first comes before there is a measure
        found += [t] if events.happened(np.array([score], np.float32), on) == [LARGE_SCORE] else []
    assert found == [600]


def test_novel_observations_are_far_from_all_earlier_ones() -> None:
    events, rng = Events([NOVELTY], 2), np.random.default_rng(0)
    frames = np.zeros((2, 4, 5, 3), np.uint8)
    found = []
    for t in range(2000):
        observations = rng.normal(size=(2, 3)).astype(np.float32)
        observations[1] = observations[1] + (50 if t == 1999 else 0)
        found.append(events.shown(frames, observations))
    assert found[-1] == ["", NOVELTY]
    assert 0 < sum(kinds != ["", ""] for kinds in found[:-1]) < 100  # 1 % of 3,500 is 35
    assert events.shown(frames, None) == ["", ""]


def novel(observations: np.ndarray, last: list[float]) -> bool:
    """Whether an observation is novel after others, float32 `[T, D]`."""
    events, frames = Events([NOVELTY], 1), np.zeros((1, 4, 5, 3), np.uint8)
    for row in observations:
        events.shown(frames, row[None])
    return events.shown(frames, np.array([last], np.float32)) == [NOVELTY]


def test_novelty_is_the_distance_to_the_nearest_in_deviations_of_each_number() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.normal(size=800), 1e4 * rng.normal(size=800)
    # Two groups, and between them nothing: the mean of all is as near to everything as can be, but to no one.
    apart = small + 100 * rng.integers(2, size=800)
    seen = np.stack([apart, large], 1).astype(np.float32)
    assert novel(seen, [50, 0])
    assert not novel(seen, [100, 0])
    assert not novel(seen, [0, 1e4])
    assert novel(seen, [0, 1e6])


def test_novelty_is_judged_by_a_uniform_sample_of_all_earlier_observations() -> None:
    novelty = _Novelty()
    for t in range(4 * 512):
        novelty.find(np.array([[t]], np.float32))
    kept = novelty._memory[:, 0]
    assert len({*kept}) == 512
    assert (kept % 1 == 0).all()
    quarters = np.histogram(kept, bins=4, range=(0, 4 * 512))[0]
    assert abs(quarters - 128).max() < 4 * np.sqrt(512 * 3 / 16)


def test_a_rare_value_is_above_all_but_one_percent_of_those_that_count() -> None:
    rare = _Rare()
    counts = np.arange(200) % 2 == 0
    assert not rare.find(
        np.where(counts, np.arange(200) / 2 + 1, 1e9), counts
    ).any()  # 1 to 100; no measure yet
    found = rare.find(np.array([99.0, 99.02, 200]), np.array([True, True, False]))  # the quantile is 99.01
    assert found.tolist() == [False, True, False]


def test_of_several_events_the_first_kind_counts() -> None:
    assert kinds_of(Flashes(2)) == ["flash"]
    events = Events([LARGE_SCORE, LOST_LIFE], 2)
    for _ in range(100):
        events.happened(np.ones(2, np.float32), np.zeros(2, bool))
    both = events.happened(np.array([9, 1], np.float32), np.ones(2, bool))
    assert both == [LARGE_SCORE, LOST_LIFE]


@pytest.mark.slow
def test_held_random_play_of_seaquest_records_refuels_and_pickups(tmp_path: Path) -> None:
    env_id, games = "SeaquestNoFrameskip-v4", 8
    world = make_world(env_id, games, num_threads=1)
    events = Events(["refuel", "pickup"], games, counter(env_id, games))
    recorder = SegmentRecorder(tmp_path, games, env_id, 18, 0.0, 0, events=events)
    held, rng = HeldActions(games, 18, 0.1, 1, 30, seed=0), np.random.default_rng(0)
    step = world.reset(0)
    for _ in range(350):
        actions, _ = held.replace(rng.integers(18, size=games))
        world.send(actions)
        recorder.before(step.frames, actions)
        step = world.recv()
        recorder.after(step)
        held.drop(step.reset)
    world.close()
    db = SegmentDB(tmp_path)
    segments = [db.load(name) for name in db.names]
    reasons = [segment.sidecar.reason for segment in segments if segment.sidecar is not None]
    assert set(reasons) == {"refuel", "pickup"}
    for segment, reason in zip(segments, reasons, strict=True):
        again, seen = SurfaceCounter(1), []
        for frame in segment.frames:
            again.push(frame[None])
            seen.append(int(again.counts()[f"{reason}s"][0]))
        assert np.diff(seen)[34:39].any()  # 10 to 14 steps before the last


def test_several_processes_share_the_limit_of_their_db(tmp_path: Path) -> None:
    recorder = SegmentRecorder(tmp_path, 2, "X", 3, 0.0, 0, max_mb=1e-3, all_envs=6)
    recorder.stored_bytes = 300
    assert not recorder.full
    recorder.stored_bytes = 400  # by two of six environments: 1,200 in all
    assert recorder.full
