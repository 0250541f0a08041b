// What the reward model thinks: any segment with its learned reward, and the labels it doubts.

import { Curve, signed } from "./curve.js";
import { CLIPS } from "./deck.js";
import { labellerOf } from "./labeller.js";
import { arrange } from "./list.js";
import { request } from "./outbox.js";
import { Playback } from "./playback.js";
import { Player } from "./player.js";

const POLL = 1000; // ms, while segments are being rated

const $ = (id) => document.getElementById(id);

class View {
  constructor(session) {
    this.session = session;
    this.tab = location.hash === "#recheck" ? "recheck" : "segments";
    this.order = sessionStorage.getItem("order") ?? "most";
    this.seed = Math.floor(Math.random() * 1e9);
    this.shown = null; // clip id of the segment on screen or on its way there
    this.rewards = [];
    this.rows = new Map(); // key of a row → its list item
    this.player = new Player(
      [{ canvas: $("canvas1"), bar: $("bar1"), action: $("action1") }],
      $("stage"),
      session.steps_per_second,
      (step, of) => this.at(step, of),
    );
    this.player.playing = !(session.start_paused || matchMedia("(prefers-reduced-motion: reduce)").matches);
    this.playback = new Playback(this.player, session.speed);
    this.playback.showPaused();
    let playing = false;
    this.curve = new Curve($("curve"), {
      onHold: () => {
        playing = this.player.playing;
        this.player.pause();
      },
      onSeek: (step) => this.player.seek(step),
      onRelease: () => {
        if (playing) this.player.play();
      },
    });
  }

  start() {
    $("about").textContent = this.session.model;
    $("order").value = this.order;
    $("order").addEventListener("change", () => {
      this.order = $("order").value;
      this.seed += 1;
      sessionStorage.setItem("order", this.order);
      $("order").blur(); // so that keys work again
      this.refresh();
    });
    let typed = null;
    $("text").addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => this.refresh(), 200);
    });
    for (const tab of ["segments", "recheck"]) {
      $(`tab-${tab}`).addEventListener("click", () => {
        history.replaceState(null, "", tab === "recheck" ? "#recheck" : location.pathname);
        this.choose(tab);
      });
    }
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.refresh();
    });
    this.choose(this.tab);
  }

  choose(tab) {
    this.tab = tab;
    for (const name of ["segments", "recheck"]) $(`tab-${name}`).setAttribute("aria-pressed", name === tab);
    document.body.classList.toggle("rechecking", tab === "recheck");
    $("explain").hidden = tab !== "recheck";
    this.still(tab === "recheck");
    $("listtitle").textContent = tab === "recheck" ? "Labels to recheck" : "Clips";
    $("list").replaceChildren();
    this.rows.clear();
    this.refresh();
  }

  // The player rests while the list of labels is shown.
  still(quiet) {
    if (quiet) this.player.stop();
    else {
      this.player.fit();
      this.player.run();
    }
  }

  // Fetches the list, again and again while the model is at work. Replies to earlier requests are dropped.
  async refresh() {
    clearTimeout(this.timer);
    const asked = {};
    this.asked = asked;
    const labeller = labellerOf(this.session);
    const path =
      this.tab === "recheck"
        ? `/api/model/doubts?${new URLSearchParams({ labeller })}`
        : `/api/model/clips?${new URLSearchParams({ order: this.order, text: $("text").value.trim(), seed: this.seed })}`;
    let reply;
    try {
      reply = await request(path);
    } catch (error) {
      if (this.asked !== asked) return;
      this.say(error.status ? error.message : "The server does not answer. Trying again.", true);
      this.timer = setTimeout(() => this.refresh(), 2 * POLL);
      return;
    }
    if (this.asked !== asked) return;
    if ($("status").classList.contains("alert")) this.say("");
    const rows = reply.doubts?.map((doubt) => this.doubt(doubt)) ?? reply.clips.map((clip) => this.segment(clip));
    this.showJudging(reply, rows.length);
    this.showRows(rows);
    if (this.tab === "segments" && !this.shown && reply.clips.length) this.open(reply.clips[0]);
    if (reply.rated < reply.of && document.visibilityState === "visible") {
      this.timer = setTimeout(() => this.refresh(), POLL);
    }
  }

  showJudging({ rated, of }, found) {
    const what = this.tab === "recheck" ? "labels" : "clips";
    $("judging").hidden = rated >= of && found > 0;
    $("judged").hidden = rated >= of;
    Object.assign($("judged"), { max: Math.max(1, of), value: rated });
    const nothing = this.tab === "recheck" ? "There are no labels left to recheck." : "No clip matches.";
    $("judgedtext").textContent = rated < of ? `rating ${what}: ${rated} of ${of}…` : nothing;
  }

  // --- the lists -----------------------------------------------------------------------------------------------

  segment(clip) {
    const text = clip.name.replace(/\.dat$/, "");
    return {
      key: clip.clip,
      clips: [clip.clip],
      lines: [text],
      number: clip.total === null ? "" : signed(clip.total, 1),
      title: `${clip.name}${clip.total === null ? "" : `: learned reward ${signed(clip.total)} in total`}`,
      open: () => this.open(clip),
    };
  }

  doubt({ clip, other, labeller, probability, total, other_total: less }) {
    const percent = `${probability < 0.1 ? (100 * probability).toFixed(1) : Math.round(100 * probability)} %`;
    const pays = `${signed(total, 1)} over ${signed(less, 1)}`;
    return {
      key: `${clip}.${other}`,
      clips: [clip, other],
      lines: [pays, labeller],
      number: percent,
      title: `${labeller} preferred the first clip; the model gives it ${pays} and finds this label ${percent} likely`,
      open: () => location.assign(`/label?recheck=${clip}.${other}`),
    };
  }

  // Rows are kept while the list is sorted anew, so that neither focus nor pictures are lost.
  showRows(rows) {
    const kept = new Map();
    for (const row of rows) {
      const item = this.rows.get(row.key) ?? this.row(row);
      item.querySelector(".number").textContent = row.number;
      item.firstChild.title = row.title;
      item.firstChild.onclick = row.open;
      kept.set(row.key, item);
    }
    this.rows = kept;
    arrange($("list"), Array.from(kept.values()));
    this.mark();
  }

  row({ clips, lines }) {
    const item = document.createElement("li");
    const button = Object.assign(document.createElement("button"), { type: "button", className: "button" });
    const pictures = clips.map((id) => Object.assign(new Image(30, 34), { src: `/thumb/${id}.png`, alt: "", loading: "lazy" }));
    if (clips.length === 2) pictures[0].className = "best";
    const text = Object.assign(document.createElement("span"), { className: "lines" });
    text.append(...lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
    const number = Object.assign(document.createElement("span"), { className: "number" });
    button.append(...pictures, text, number);
    item.append(button);
    return item;
  }

  mark() {
    for (const [key, item] of this.rows) {
      if (key === this.shown) item.firstChild.setAttribute("aria-current", "true");
      else item.firstChild.removeAttribute("aria-current");
    }
  }

  move(by) {
    const keys = Array.from(this.rows.keys());
    const at = keys.indexOf(this.shown);
    const next = this.rows.get(keys[at < 0 ? 0 : at + by]);
    if (!next) return;
    next.firstChild.click();
    next.scrollIntoView({ block: "nearest" });
  }

  // --- the segment on screen -----------------------------------------------------------------------------------

  async open({ clip, name }) {
    if (this.shown === clip) return;
    this.shown = clip;
    this.mark();
    $("stage").classList.add("loading");
    let found;
    try {
      found = await Promise.all([CLIPS.fetch(clip).then(CLIPS.decode), request(`/api/model/curve/${clip}`)]);
    } catch (error) {
      if (this.shown !== clip) return;
      this.shown = null;
      this.mark();
      this.say(error.status ? error.message : "The server does not answer.", true);
      return;
    }
    const [picture, { rewards }] = found;
    if (this.shown !== clip) {
      picture.image.close();
      return;
    }
    this.picture?.image.close();
    this.picture = picture;
    this.rewards = rewards;
    $("title").textContent = name.replace(/\.dat$/, "");
    $("sum").textContent = `total ${signed(rewards.reduce((sum, reward) => sum + reward, 0), 1)}`;
    $("stage").classList.remove("loading", "empty");
    this.curve.show(rewards);
    this.player.show([picture]);
    this.playback.showPaused();
    this.say("");
    if ($("stage").getBoundingClientRect().bottom < 100) $("stage").scrollIntoView(); // on a phone it lies above
  }

  at(step, of) {
    $("step").textContent = `step ${step} / ${of}`;
    $("now").textContent = `step ${step}: ${signed(this.rewards[step - 1])}`;
    this.curve.at(step - 1);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target === $("text")) {
      if (event.key === "Escape") $("text").blur();
      return;
    }
    if (event.target === $("order") || this.tab === "recheck") return;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      event.preventDefault();
      this.move(event.key === "ArrowUp" ? -1 : 1);
      return;
    }
    this.playback.key(event, {});
  }

  say(text, alert = false) {
    $("status").classList.toggle("alert", alert);
    $("status").textContent = text;
  }
}

async function main() {
  let session;
  try {
    session = await request("/api/session");
  } catch (error) {
    $("status").textContent = error.status ? error.message : "The server does not answer. Trying again.";
    $("status").classList.add("alert");
    if (!error.status) setTimeout(main, 2000);
    return;
  }
  $("status").classList.remove("alert");
  $("status").textContent = "";
  if (session.model) {
    new View(session).start();
    return;
  }
  document.body.classList.add("none");
  $("notice").textContent =
    "This page has no reward model. Fit one to these labels with 03_reward_train.py, then restart the page with --reward and the file that it wrote.";
  $("notice").hidden = false;
}

main();
