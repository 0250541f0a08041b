"""The report as a file: complete, self-contained, and deaf to what others wrote into a DB."""

import base64
import dataclasses
import hashlib
import itertools
import math
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.cli import UserError
from lib.preferences.labels import Label, LabelLog
from lib.preferences.segments import load_segment, save_segment
from lib.reporting import Charts
from lib.reward.epoch import evaluate_ensemble, pair_loss
from lib.reward.model import RewardModel
from lib.reward.report import figures_of, judged, plots, report_path, write_report
from lib.reward.report.clips import clip, data_uri, film_strip
from lib.reward.report.figures import ASSUMED, MEASURED, Ceiling, Share
from lib.reward.report.verdict import LABEL_MORE, WRONG, Evidence, Verdict, judge_fit
from tests.reward.clips import clip as grey_clip
from tests.reward.clips import grey_db, save
from tests.reward.fits import CPU, unfitted

EVIL = "</script><img src=x onerror='window.pwned=1'><script>window.pwned=1</script>\"&"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_db(tmp_path_factory.mktemp("grey") / "db", segments=24, labels=60)


class Elements(HTMLParser):
    """What a page is made of; complains of elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.inside.setdefault(self._open[-1], []).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_held_out_pairs_with_a_clip_of_an_event_are_told_apart(tmp_path: Path) -> None:
    db = grey_db(tmp_path / "db", segments=24, labels=60)
    fit = unfitted(db, tmp_path)
    assert figures_of(fit).held_out_without_events == figures_of(fit).held_out
    write_report(fit, Charts(tmp_path / "run"))
    assert "because of an event" not in report_path(fit.path).read_text()

    events = sorted(db.glob("*/*.dat"))[:8]
    for path in events:
        segment = load_segment(path)
        assert segment.sidecar is not None
        path.unlink()
        sidecar = dataclasses.replace(segment.sidecar, reason="refuel")
        save_segment(path, dataclasses.replace(segment, sidecar=sidecar))
    fit = unfitted(db, tmp_path)
    figures, names = figures_of(fit), {f"{path.parent.name}/{path.name}" for path in events}
    held = [fit.data.labels[at] for at in fit.test if fit.data.labels[at].label != 0]
    plain = [label for label in held if not names & set(label.pair)]
    assert 0 < len(plain) == figures.held_out_without_events.count < figures.held_out.count == len(held)
    write_report(fit, Charts(tmp_path / "run"))
    said = f"{len(held) - len(plain)} of these pairs have a clip that was recorded because of an event"
    assert said in report_path(fit.path).read_text()


def test_figures_agree_with_how_the_fit_was_judged(db: Path, tmp_path: Path) -> None:
    fit = unfitted(db, tmp_path, members=3)
    figures = figures_of(fit)
    assert figures.held_out == Share(fit.best.correct, fit.best.decided)
    assert figures.held_out.count > 5
    assert sum(bin.agreed.count for bin in figures.bins) == figures.held_out.count
    assert len(figures.each) == len(fit.data.segments)
    assert figures.each[0].shape == (3, 5)
    assert figures.paid(0) == pytest.approx(figures.each[0].mean(0))
    answers = [row for row in figures.kinds if row.group == "answer"]
    assert sum(row.labels for row in answers) == len(fit.data.labels)
    assert sum(row.held_out.hits for row in answers) == figures.held_out.hits
    # Nothing was scored in these clips of five steps.
    assert [entry.pearson.text for entry in figures.correlations] == ["not defined"] * 2
    assert figures.correlations[0].count == 0
    assert figures.verdict.outcome == LABEL_MORE


def test_figures_agree_with_how_the_fit_was_judged_where_clips_differ_in_length(tmp_path: Path) -> None:
    db = tmp_path / "db"
    db.mkdir()
    names = [save(db, at, grey_clip(6 * at, steps=1 + 7 * at % 9, seed=at)) for at in range(40)]
    for at in range(0, 40, 2):
        LabelLog(db / "labels.json").append(Label(names[at], names[at + 1], 1 + at // 2 % 2))
    for members in (1, 3):
        fit = unfitted(db, tmp_path, members)
        fit = dataclasses.replace(fit, test=np.arange(20))
        best = evaluate_ensemble(fit.model, fit.data.segments, fit.data.pairs, pair_loss(fit.config), CPU)
        figures = figures_of(fit)
        assert figures.held_out == Share(best.correct, best.decided)
        if members == 1:  # the likelier one is the one that it prefers
            likelier = figures.probabilities > 0.5
            assert ((likelier == (fit.data.pairs.preference1 == 1)) == figures.right).all()


def test_a_model_that_cannot_tell_is_right_about_neither_order(tmp_path: Path) -> None:
    db = tmp_path / "db"
    db.mkdir()
    names = [save(db, at, grey_clip(100, seed=at // 2)) for at in range(20)]
    for at in range(0, 20, 2):
        LabelLog(db / "labels.json").append(Label(names[at], names[at + 1], 2))
    assert not figures_of(unfitted(db, tmp_path)).right.any()


def test_ties_count_in_no_loss_that_the_verdict_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the labels are ties, which count three times; a tie's loss is log 2 at least, so the others' is at most 0.2."""
    fit = unfitted(grey_db(tmp_path / "db", segments=24, labels=60), tmp_path, members=1)
    pairs = fit.data.pairs
    for side in (fit.train, fit.test):
        ties = side[::2]
        pairs.preference1[side], pairs.preference1[ties], pairs.weight[ties] = 1.0, 0.5, 3.0
    mixed = 0.75 * math.log(2) + 0.25 * 0.2
    history = [dataclasses.replace(epoch, train_loss=mixed) for epoch in fit.history]
    told: list[Evidence] = []

    def judge(evidence: Evidence) -> Verdict:
        told.append(evidence)
        return judge_fit(evidence)

    monkeypatch.setattr(judged, "judge_fit", judge)
    figures_of(dataclasses.replace(fit, history=history))
    assert told[0].train_loss == pytest.approx(0.2, abs=1e-6)
    alone = evaluate_ensemble(
        fit.model, fit.data.segments, pairs.subset(fit.test[1::2]), pair_loss(fit.config), CPU
    )
    assert told[0].held_out_loss == pytest.approx(alone.loss, rel=1e-3)


def test_a_teacher_asked_twice_sets_the_ceiling(db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "db"
    grey_db(copy, segments=24, labels=60)
    log = LabelLog(copy / "labels.json")
    told = list({label.pair: label for label in log.read() if label.label in (1, 2)}.values())[:20]
    for number, label in enumerate(told):
        said = label.label if number >= 4 else 3 - (label.label or 0)
        log.append(Label(label.sample1, label.sample2, said, repeat=True))
    figures = figures_of(unfitted(copy, tmp_path / "out"))
    assert figures.agreed.same_labeller == Share(16, 20)
    assert figures.ceiling.kind == MEASURED


def test_the_page_is_one_file_that_asks_for_nothing_and_runs_only_its_own_script(
    db: Path, tmp_path: Path
) -> None:
    fit = unfitted(db, tmp_path)
    verdict = write_report(fit, Charts(None))
    path = report_path(fit.path)
    assert path == tmp_path / "reward-grey.report.html"
    text = path.read_text()
    assert (tmp_path / "report.html").read_text() == text
    assert len(text) < 3_000_000
    page = Elements(text)
    for _, attributes in page.found:
        for key in ("src", "href"):
            assert (attributes.get(key) or "data:").startswith("data:")
        assert not any(key.startswith("on") or key == "style" for key in attributes)
    policy = next(meta["content"] for meta in page.named("meta") if "http-equiv" in meta)
    assert policy is not None
    assert "default-src 'none'" in policy
    for kind in ("script", "style"):
        (content,) = page.inside[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.search(r"@import|url\(", "".join(page.inside["style"]))
    assert len(page.named("figure")) == 8
    assert verdict.outcome in "".join(page.inside["h2"])
    assert "The epoch was chosen by its loss on these pairs" in "".join(page.inside["p"])
    assert len(page.named("svg")) == 4 + 8, "charts, and the curves of the clips"
    assert not re.search(
        r"\b(nan|inf|None)\b", " ".join(page.inside["td"] + page.inside["p"] + page.inside["strong"])
    )


def test_two_models_in_one_folder_keep_their_reports(db: Path, tmp_path: Path) -> None:
    for name in ("v1", "v1.5"):
        write_report(unfitted(db, tmp_path, name=name), Charts(None))
    first, second = (tmp_path / f"reward-{name}.report.html" for name in ("v1", "v1.5"))
    assert "<h1>reward-v1</h1>" in first.read_text()
    assert second.read_text() == (tmp_path / "report.html").read_text()


def test_names_notes_and_paths_are_shown_never_run(tmp_path: Path) -> None:
    db = tmp_path / "<script>window.pwned=1<" / "script>"
    names = []
    db.mkdir(parents=True)
    for number in range(12):
        segment = grey_clip(20 * number, seed=number, env_id=EVIL)
        names.append(save(db, number, segment))
    log = LabelLog(db / "labels.json")
    for number in range(11):
        one, other = names[number], names[number + 1]
        log.append(Label(one, other, 2, annotator=EVIL, strategy=EVIL if number % 2 else "random", flag=EVIL))
    (db / "labels.json").open("a").write(f'{{"sample1": "{names[0]}", "torn {EVIL[:9]}\n')
    fit = unfitted(db, tmp_path / "out")
    write_report(fit, Charts(None))
    page = Elements(report_path(fit.path).read_text())
    assert len(page.named("script")) == 1
    assert all((image["src"] or "").startswith("data:image/png") for image in page.named("img"))
    assert EVIL in page.inside["td"]


def test_a_model_alone_and_clips_without_scores_have_their_report_too(tmp_path: Path) -> None:
    db = tmp_path / "db"
    db.mkdir()
    names = [save(db, n, dataclasses.replace(grey_clip(20 * n, seed=n), sidecar=None)) for n in range(12)]
    log = LabelLog(db / "labels.json")
    for one, other in itertools.pairwise(names):
        log.append(Label(one, other, 0))
    fit = unfitted(db, tmp_path / "out", members=1)
    verdict = write_report(fit, Charts(None))
    assert verdict.reasons == ["no pair with a preference was held out, so nothing can be said"]
    assert "No score was recorded" in report_path(fit.path).read_text()


def test_a_model_without_finite_rewards_has_its_report_too(db: Path, tmp_path: Path) -> None:
    fit = unfitted(db, tmp_path)
    broken = [dataclasses.replace(member, mean=math.nan) for member in fit.model.members]
    fit = dataclasses.replace(fit, model=RewardModel(broken, CPU))
    assert write_report(fit, Charts(None)).outcome == WRONG
    page = Elements(report_path(fit.path).read_text())
    assert len(page.named("figure")) == 8
    assert not any("NaN" in (figure["data-clip"] or "") for figure in page.named("figure"))


def test_the_same_figures_are_in_tensorboard(db: Path, tmp_path: Path) -> None:
    fit = unfitted(db, tmp_path)
    with Charts(fit.run_dir) as charts:
        write_report(fit, charts)
    events = EventAccumulator(str(fit.run_dir)).Reload()
    (point,) = events.Scalars("report/held_out_accuracy")
    assert point.value == pytest.approx(fit.best.accuracy)
    low, high = Share(fit.best.correct, fit.best.decided).interval
    assert events.Scalars("report/held_out_accuracy_low")[0].value == pytest.approx(low)
    assert events.Scalars("report/held_out_accuracy_high")[0].value == pytest.approx(high)
    assert len(events.Scalars("report/liked_most")) == 5
    assert "report/verdict/text_summary" in events.Tags()["tensors"]
    for name, liked in zip(("most", "least"), figures_of(fit).liked(), strict=True):
        (image,) = events.Images(f"report/clips_liked_{name}")
        shown = cv2.imdecode(np.frombuffer(image.encoded_image_string, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert shown is not None
        strips = shown.reshape(4, 50, 10, 50, 3)[:, :48, :, :48]
        for strip, index in zip(strips, liked, strict=True):
            frames = fit.data.segments.get(index)[0]
            assert np.array_equal(strip[:, 0], frames[0])
            assert np.array_equal(strip[:, 9], frames[4])


@pytest.mark.slow
def test_the_script_ends_with_the_verdict_and_where_the_report_is(
    db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "03_reward_train.py"))
    flags = [
        "-n",
        "grey",
        "-o",
        tmp_path / "out",
        "--runs",
        tmp_path / "runs",
        "--epochs",
        "1",
        "--no-bf16",
        db,
    ]
    script["main"]([str(flag) for flag in flags])
    verdict, where = capsys.readouterr().out.splitlines()[-2:]
    assert verdict.startswith(LABEL_MORE + ": ")
    assert where == f"report in {tmp_path / 'out' / 'reward-grey.report.html'}"
    (run_dir,) = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(run_dir)).Reload()
    assert {"report/held_out_accuracy", "loss/train", "rewards/chosen", "rewards/rejected"} <= set(
        events.Tags()["scalars"]
    )


def test_a_folder_that_cannot_be_written_to_is_named(db: Path, tmp_path: Path) -> None:
    fit = dataclasses.replace(unfitted(db, tmp_path), path=tmp_path / "gone" / "reward-grey.dat")
    with pytest.raises(UserError, match="gone"):
        write_report(fit, Charts(None))


def test_a_film_strip_has_ten_frames_from_the_first_to_the_last_in_small() -> None:
    frames = np.zeros((46, 240, 160, 3), np.uint8)
    frames[:] = np.arange(46, dtype=np.uint8)[:, None, None, None]
    strip = film_strip(frames)
    assert strip.shape == (122, 10 * 82, 3)
    assert strip[60, 40::82, 0].tolist() == list(range(0, 46, 5))
    assert (strip[60, 81::82] == 128).all()
    assert film_strip(frames[:1, :30, :20]).shape == (32, 10 * 22, 3)


def decoded(uri: str) -> np.ndarray:
    encoded = np.frombuffer(base64.b64decode(uri.partition(",")[2]), np.uint8)
    picture = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert picture is not None
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def test_flat_pictures_come_out_exactly_and_noise_comes_out_small() -> None:
    flat = np.zeros((210, 320, 3), np.uint8)
    flat[40:80, 60:90] = (187, 187, 53)
    assert (decoded(data_uri(flat)) == flat).all()
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    assert decoded(data_uri(noise)).shape == noise.shape
    assert len(data_uri(noise)) < noise.nbytes / 2


def test_long_and_large_clips_lose_frames_and_pixels() -> None:
    frames = np.zeros((500, 700, 30, 3), np.uint8)
    playback = clip("title", "source", frames, np.zeros(500), (-1, 1), "learned reward").playback
    assert (playback["width"], playback["height"]) == (10, 234)
    assert playback["every"] == 3
    assert playback["steps"] == 167


def test_charts_say_what_they_show() -> None:
    chart = Elements(plots.gauge("a < b", Share(0, 0), Ceiling(0.9, 0.9, 0.9, ASSUMED)))
    assert chart.named("svg")[0]["aria-label"] == "a < b"
    assert {"chance", "teacher's ceiling 90%", "0 %", "100 %"} <= set(chart.inside["text"])
    assert not any("style" in attributes for _, attributes in chart.found), "the content policy admits none"
    dots = [path for path in chart.named("path") if (path.get("id") or "").startswith("m")]
    assert len(dots) == 1, "no dot where nothing was held out, only the ticks"
