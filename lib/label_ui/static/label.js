// The labelling screen: shows a pair, takes an answer by key or button, sees to it that it is on disk, goes on.

import { Deck, sides } from "./deck.js";
import { labellerOf, rememberLabeller } from "./labeller.js";
import { Outbox, request } from "./outbox.js";
import { Playback } from "./playback.js";
import { Player } from "./player.js";

const BATCH = 10; // pairs held at a time
const BOUNCE = 150; // ms after a pair appears in which an answer cannot be meant for it
const HEARTBEAT = 30000; // ms; leases last two minutes
const SAID = { 1: "1 better", 2: "2 better", 0: "alike", x: "can’t tell" };

const $ = (id) => document.getElementById(id);

function newId(prefix = "") {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// One id a tab, kept over a reload. A duplicated tab starts with a copy and takes a new one.
async function pageId() {
  let id = sessionStorage.getItem("page") ?? newId();
  const hold = (name) =>
    new Promise((resolve) => {
      if (!navigator.locks) return resolve(true);
      navigator.locks.request(`page-${name}`, { ifAvailable: true }, (lock) => {
        resolve(Boolean(lock));
        return lock ? new Promise(() => {}) : undefined;
      });
    });
  if (!(await hold(id))) {
    id = newId();
    sessionStorage.removeItem("offers");
    await hold(id);
  }
  sessionStorage.setItem("page", id);
  return id;
}

class Labeller {
  constructor(session, page) {
    this.session = session;
    this.page = page;
    this.deck = new Deck();
    this.answered = []; // [{offer, answer, flag}], latest last; what Undo takes back
    this.older = true; // whether the server may have earlier answers than these
    this.shown = null; // the offer on screen, once its clips are
    this.busy = false; // an answer is on its way
    this.note = "";
    this.notice = "";
    this.review = false; // a labelled pair was opened from the table
    this.recheck = false; // pairs come again because the reward model doubts what was said about them
    this.back = null; // where Esc leads
    this.notes = new Map(); // offer id → note it had before, for pairs that come back
    this.undone = new Set(); // ids of offers that came back; what held before the answer taken back may hold again
    this.trouble = false; // the alert on screen is of the connection or the disk, and over when they are
    this.problems = new Set();
    this.rows = new Map(); // offer id → its row in the list
    this.name = labellerOf(session);
    this.strategy = sessionStorage.getItem("strategy") ?? session.strategy;
    this.outbox = new Outbox(session.db, page, (op, reply) => this.settled(op, reply), () => this.showState());
    this.player = new Player(
      [1, 2].map((i) => ({ canvas: $(`canvas${i}`), bar: $(`bar${i}`), action: $(`action${i}`) })),
      $("stage"),
      session.steps_per_second,
      (step, of) => {
        $("step").textContent = `step ${step} / ${of}`;
      },
    );
    const still = session.start_paused || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.player.playing = !still;
    this.startPaused = still;
  }

  async start() {
    const query = new URLSearchParams(location.search);
    const opened = query.get("pair")?.split(".");
    const recheck = query.get("recheck")?.split(".");
    // Before anything is wired: where the server does not answer, main() begins anew.
    const clips = [opened, recheck].find((ids) => ids?.length === 2);
    const pair = clips && (await request(`/api/pair/${clips.join("/")}${clips === recheck ? "?recheck=true" : ""}`));
    this.wire();
    if (!this.name) await this.askName();
    this.showName();
    await this.outbox.flush();
    if (clips === opened && pair) {
      this.openReview(pair);
      return;
    }
    if (recheck) this.openRecheck(pair);
    else this.recall();
    await this.refill();
    this.loadHistory().catch(() => {});
    setInterval(() => {
      if (document.visibilityState === "visible") this.refill();
    }, HEARTBEAT);
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.refill();
    });
  }

  // --- pairs ---------------------------------------------------------------------------------------------------

  // Pairs this tab held before a reload; the server renews them.
  recall() {
    const left = JSON.parse(sessionStorage.getItem("offers") ?? "null");
    if (left?.db === this.session.db && left.name === this.name) {
      const gone = new Set(this.outbox.ops.map((op) => op.body.offer?.id));
      this.undone = new Set(left.undone);
      this.deck.set(left.offers.filter((offer) => !gone.has(offer.id)));
      this.display();
    }
  }

  remember() {
    if (this.recheck) return; // these come again by themselves; the ordinary pairs wait for the way back
    const { db } = this.session;
    const { offers } = this.deck;
    const undone = offers.map(({ id }) => id).filter((id) => this.undone.has(id));
    sessionStorage.setItem("offers", JSON.stringify({ db, name: this.name, offers, undone }));
  }

  // Renews the pairs ahead and asks for more. One request at a time; a call during one leads to one more.
  async refill(keep = null) {
    if (this.review) return; // the one pair that was opened, no other
    if (this.filling) {
      this.again = true;
      return this.filling;
    }
    this.filling = this.fill(keep).finally(() => {
      this.filling = null;
      if (this.again) {
        this.again = false;
        this.refill();
      }
    });
    return this.filling;
  }

  async fill(keep) {
    clearTimeout(this.refillTimer);
    const kept = (keep ?? this.deck.offers).slice(0, 50); // the server takes no more
    const asked = new Set(this.deck.offers.map((offer) => offer.id));
    let reply;
    try {
      reply = await request("/api/batch", {
        page: this.page, labeller: this.name, keep: kept, want: BATCH, strategy: this.strategy,
      });
    } catch (error) {
      this.outbox.failed(error.status ? error.message : "");
      this.refillTimer = setTimeout(() => this.refill(), 2000);
      return;
    }
    if (this.outbox.waiting) this.outbox.flush(); // the server is there: what waits need not wait any longer
    else this.outbox.reached();
    // While the request was under way the labeller may have gone on: keep what came off the deck off it, keep what
    // was put on it (an undone pair), and never take away the pair on screen.
    const now = this.deck.offers;
    const stay = new Set(now.map((offer) => offer.id));
    const fresh = reply.pairs.filter((offer) => stay.has(offer.id) || !asked.has(offer.id));
    const known = new Set(fresh.map((offer) => offer.id));
    const mine = now.filter((offer, at) => !known.has(offer.id) && (at === 0 || !asked.has(offer.id)));
    const current = now[0];
    const merged = [...mine, ...fresh];
    if (current) merged.sort((a, b) => (b.id === current.id) - (a.id === current.id));
    const answered = new Set(this.answered.map((one) => one.offer.id));
    this.deck.set(merged.filter((offer) => !answered.has(offer.id)));
    this.notice = reply.notice;
    this.showStanding(reply.standing);
    this.showProblems(reply.problems);
    this.remember();
    this.display();
    if (!this.deck.offers.length) this.refillTimer = setTimeout(() => this.refill(), 2000);
  }

  // Brings the first pair of the deck on screen, at once if its clips are there.
  display(pressed = null) {
    const offer = this.deck.current;
    this.showList();
    $("stage").classList.toggle("empty", !offer);
    $("stage").classList.remove("loading");
    this.showReason(offer);
    if (!offer) {
      this.shown = null;
      this.player.clear();
      this.banner(this.notice);
      this.enable();
      return;
    }
    if (this.shown === offer.id) return;
    const clips = this.deck.ready(offer);
    if (!clips) {
      this.shown = null;
      this.player.clear(); // its pictures may be gone already
      this.enable();
      $("stage").classList.add("loading");
      this.deck.load(offer).then(
        () => {
          if (this.deck.current?.id === offer.id) this.display(pressed);
        },
        (error) => this.unplayable(offer, error),
      );
      return;
    }
    this.banner("");
    if (this.startPaused) this.player.pause();
    this.player.show(clips);
    this.shown = offer.id;
    this.appeared = performance.now();
    this.away = 0;
    this.setNote(this.notes.get(offer.id) ?? "");
    this.enable();
    this.playback.showPaused();
    this.showSizes(clips);
    if (pressed !== null) {
      // From the key press to the first frame of the next pair being on screen; read with PerformanceObserver.
      requestAnimationFrame(() => {
        performance.clearMeasures("next pair");
        performance.measure("next pair", { start: pressed });
      });
    }
  }

  unplayable(offer, error) {
    if (this.deck.current?.id !== offer.id) return;
    const undecodable = error instanceof DOMException && error.name === "InvalidStateError";
    if (undecodable || error.status === 422 || error.status === 404) {
      const text = undecodable ? "A clip cannot be shown by this browser and is left out." : error.message;
      this.problems.add(text);
      this.say(text);
      this.deck.drop(offer.id);
      this.refill();
      this.display();
      return;
    }
    this.outbox.failed(error.status ? error.message : "");
    setTimeout(() => {
      this.deck.retry(offer);
      if (this.deck.current?.id === offer.id && this.shown !== offer.id) this.display();
    }, 1000);
  }

  async resample() {
    if (this.busy || this.review || this.recheck) return;
    this.say("New pairs drawn.");
    const current = this.deck.offers.slice(0, 1);
    await this.filling;
    this.deck.set(current);
    await this.refill(current);
  }

  // --- answers -------------------------------------------------------------------------------------------------

  get answerable() {
    const offer = this.deck.current;
    return Boolean(offer && this.shown === offer.id && !this.busy && !this.outbox.blocked && !$("ask").open);
  }

  // answer: "1" left is better, "2" right is, "0" alike, "x" can't tell.
  async answer(answer, pressed) {
    if (!this.answerable || performance.now() - this.appeared < BOUNCE) return;
    const offer = this.deck.current;
    const typed = $("noteform").hidden ? "" : $("note").value.trim(); // by a click or a tap, without Enter
    if (typed) this.setNote(typed);
    const label = { 0: 0, x: null, 1: offer.left, 2: 3 - offer.left }[answer];
    this.busy = true;
    this.enable();
    const op = this.outbox.add("/api/vote", {
      db: this.session.db,
      page: this.page,
      labeller: this.name,
      offer,
      label,
      response_ms: Math.max(0, Math.round(performance.now() - this.appeared - this.away)),
      flag: this.note || null,
      change: this.review || this.undone.has(offer.id),
    });
    this.pending = { op, offer, answer, flag: this.note, pressed };
    this.mark(answer);
    setTimeout(() => this.pending?.op === op && !this.outbox.blocked && this.say("Saving…"), 700);
    await this.outbox.flush();
    if (this.pending?.op === op && this.outbox.offline) this.moveOn(); // it waits in the outbox; the page says so
    else if (this.pending?.op === op) this.showState();
  }

  mark(answer) {
    for (const side of [1, 2]) $(`canvas${side}`).parentElement.classList.toggle("chosen", answer === String(side));
  }

  // The server has dealt with an answer, perhaps one from before a reload.
  settled(op, reply) {
    if (reply.standing) this.showStanding(reply.standing);
    if (reply.outcome === "dropped") {
      this.say(`An answer was not counted: ${reply.reason}.`, { alert: true });
      this.answered = this.answered.filter((one) => one.offer.id !== op.body.offer?.id);
    }
    if (this.pending?.op === op) this.moveOn(reply.outcome === "dropped");
    else if (op.late && !this.outbox.waiting) {
      if (this.review && !this.deck.current) this.endReview(reply.outcome === "dropped");
      if (reply.outcome !== "dropped") this.say("Back in touch. Everything that waited is saved.");
      this.refill();
    }
  }

  moveOn(dropped = false) {
    const { offer, answer, flag, pressed } = this.pending;
    this.pending = null;
    this.busy = false;
    this.mark(null);
    if (!dropped) this.answered.push({ offer, answer, flag });
    if (this.answered.length > 500) {
      this.answered.splice(0, 250);
      this.older = true;
    }
    if (this.review) {
      this.endReview(dropped);
      return;
    }
    this.deck.drop(offer.id);
    this.remember();
    this.display(pressed);
    if (!dropped && !this.outbox.offline) this.say(`Saved: ${SAID[answer]}.`);
    this.showState();
    if (!this.outbox.offline) this.refill();
  }

  async undo() {
    if (this.busy && !this.outbox.blocked) return;
    if (this.review || $("ask").open) return;
    let last = this.pending; // waits because the server cannot write: taken back by a second message, not by dropping it
    this.pending = null;
    this.busy = false;
    this.mark(null);
    if (!last) {
      if (!this.answered.length && this.older) await this.loadHistory().catch(() => {});
      last = this.answered.pop();
    }
    if (!last) {
      this.say("There is nothing to undo.");
      return;
    }
    this.outbox.add("/api/undo", {
      db: this.session.db, page: this.page, labeller: this.name, id: newId("u-"), target: last.offer.id,
    });
    // The same pair under a new id: the old one has been used.
    const offer = { ...last.offer, id: newId() };
    this.undone.add(offer.id);
    if (last.flag) this.notes.set(offer.id, last.flag);
    this.deck.set([offer, ...this.deck.offers.filter(({ id }) => id !== last.offer.id)]);
    this.remember();
    this.display();
    this.say(`Taken back: ${SAID[last.answer]}. Answer this pair again.`);
    await this.outbox.flush();
    this.showState();
    if (!this.outbox.offline) this.refill();
  }

  async loadHistory() {
    const before = this.answered[0]?.offer.id;
    const query = new URLSearchParams({ labeller: this.name, ...(before && { before }) });
    const said = await request(`/api/history?${query}`);
    const known = new Set(this.answered.map((one) => one.offer.id));
    const earlier = said.filter((one) => !known.has(one.offer.id));
    this.answered = [...earlier.map(({ offer, label, flag }) => ({ offer, answer: side(label, offer), flag })), ...this.answered];
    this.older = earlier.length > 0;
    this.showList();
  }

  // --- a labelled pair, opened from the table ------------------------------------------------------------------

  openReview({ offer, said }) {
    this.review = true;
    this.back = "/labels";
    document.body.classList.add("review");
    for (const id of ["undo", "resample", "strategy"]) $(id).disabled = true;
    $("list").replaceChildren();
    const lines = said.map((one) => `${one.labeller}: ${SAID[side(one.label, offer)]}${one.flag ? ` (${one.flag})` : ""}`);
    $("said").replaceChildren(
      ...(lines.length ? lines : ["Not labelled yet"]).map((line) =>
        Object.assign(document.createElement("li"), { textContent: line }),
      ),
    );
    $("opened").hidden = false;
    const mine = said.find((one) => one.labeller === this.name);
    if (mine?.flag) this.notes.set(offer.id, mine.flag);
    this.deck.set([offer]);
    this.display();
  }

  // --- pairs whose label the reward model doubts, from its page ------------------------------------------------

  openRecheck(pair) {
    this.recheck = true;
    this.back = "/model#recheck";
    this.strategy = "recheck";
    document.body.classList.add("recheck");
    for (const id of ["resample", "strategy"]) $(id).disabled = true;
    $("rechecking").hidden = false;
    if (!pair) return;
    this.deck.set([pair.offer]);
    this.display();
  }

  endReview(dropped) {
    if (!dropped && !this.outbox.waiting) location.assign("/labels");
    else if (!dropped) this.deck.set([]); // answered, but not on disk yet: settled() leads back
    this.display();
    this.showState();
  }

  // --- keys and buttons ----------------------------------------------------------------------------------------

  wire() {
    document.addEventListener("keydown", (event) => this.key(event));
    this.playback = new Playback(this.player, this.session.speed);
    $("strategy").addEventListener("pointerdown", () => {
      this.picking = true;
    });
    $("strategy").addEventListener("blur", () => {
      this.picking = false;
    });
    const press = (id, action) => $(id).addEventListener("click", (event) => action(event.timeStamp));
    for (const button of document.querySelectorAll("[data-answer]")) {
      button.addEventListener("click", (event) => this.answer(button.dataset.answer, event.timeStamp));
    }
    press("undo", () => this.undo());
    press("flag", () => this.openNote());
    press("resample", () => this.resample());
    press("who", () => this.askName().then(() => this.changeName()));
    for (const name of this.session.strategies) $("strategy").append(new Option(name, name));
    $("model").hidden = !this.session.model;
    if (!this.session.strategies.includes(this.strategy)) this.strategy = this.session.strategy;
    $("strategy").value = this.strategy;
    $("strategy").addEventListener("change", () => {
      this.strategy = $("strategy").value;
      sessionStorage.setItem("strategy", this.strategy);
      if (this.picking) $("strategy").blur(); // so that keys work again; whoever came by Tab stays
      this.resample();
    });
    $("noteform").addEventListener("submit", (event) => {
      event.preventDefault();
      this.setNote($("note").value.trim() || "flagged");
    });
    let hidden = null;
    document.addEventListener("visibilitychange", () => {
      // Time spent elsewhere is no response time.
      if (document.visibilityState === "hidden") hidden = performance.now();
      else if (hidden !== null) this.away += performance.now() - Math.max(hidden, this.appeared ?? 0);
    });
    // What lies ahead here goes to others now rather than in two minutes. A page that is shown again asks for it anew.
    addEventListener("pagehide", () => {
      const leave = new Blob([JSON.stringify({ page: this.page })], { type: "application/json" });
      navigator.sendBeacon("/api/leave", leave);
    });
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.refill();
    });
    addEventListener("beforeunload", (event) => {
      if (this.outbox.waiting && this.outbox.blocked) event.preventDefault();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const target = event.target;
    if (target === $("note")) {
      if (event.key === "Escape") this.setNote("");
      return;
    }
    if ($("ask").open || (target === $("strategy") && !this.picking)) return;
    $("strategy").blur();
    this.playback.key(event, {
      1: () => this.answer("1", event.timeStamp),
      2: () => this.answer("2", event.timeStamp),
      0: () => this.answer("0", event.timeStamp),
      x: () => this.answer("x", event.timeStamp),
      u: () => this.undo(),
      Backspace: () => this.undo(),
      f: () => this.openNote(),
      n: () => this.resample(),
      Escape: () => this.back && location.assign(this.back),
    });
  }

  openNote() {
    if (!this.shown || this.busy) return;
    const from = document.activeElement;
    this.noteFrom = from.matches(":focus-visible") ? from : null; // somebody who came by Tab goes back there
    $("noteform").hidden = false;
    $("flag").setAttribute("aria-expanded", "true");
    $("note").value = this.note === "flagged" ? "" : this.note;
    $("note").focus();
  }

  setNote(text) {
    this.note = text;
    $("noteform").hidden = true;
    $("flag").setAttribute("aria-expanded", "false");
    $("flag").setAttribute("aria-pressed", Boolean(text));
    $("flag").title = text ? `Flagged: ${text}` : "Flag this pair with a note";
    if (document.activeElement === $("note")) {
      $("note").blur();
      this.noteFrom?.focus();
    }
    if (text) this.say(`Flagged: ${text}`);
  }

  askName() {
    return new Promise((resolve) => {
      $("askname").value = this.name ?? "";
      $("ask").showModal();
      $("ask").oncancel = (event) => {
        if (this.name) resolve();
        else event.preventDefault();
      };
      $("askform").onsubmit = (event) => {
        event.preventDefault();
        const name = $("askname").value.trim();
        if (!name) return;
        this.name = name;
        rememberLabeller(this.session, name);
        $("ask").close();
        resolve();
      };
    });
  }

  changeName() {
    this.showName();
    if (this.review) return;
    this.answered = [];
    this.older = true;
    this.refill();
    this.loadHistory().catch(() => {});
  }

  // --- what the panel says -------------------------------------------------------------------------------------

  enable() {
    const ready = this.answerable;
    // Not `disabled`, which would take the focus from somebody who answers by Tab and Space.
    for (const button of document.querySelectorAll("[data-answer]")) button.ariaDisabled = !ready;
    $("flag").ariaDisabled = !this.shown;
  }

  say(text, { alert = false, trouble = false } = {}) {
    this.trouble = trouble;
    $("status").classList.toggle("alert", alert || trouble);
    $("status").textContent = text;
  }

  banner(text) {
    $("notice").hidden = !text;
    if ($("notice").textContent !== text) $("notice").textContent = text; // screen readers read each change
  }

  showState() {
    const { offline, blocked, waiting } = this.outbox;
    this.enable();
    if (blocked) {
      const kept = waiting ? ` ${waiting} answer${waiting > 1 ? "s are" : " is"} kept in this browser and sent again by itself.` : "";
      this.say(`Not saved: ${blocked}.${kept}`, { trouble: true });
    } else if (offline) {
      const kept = waiting ? `${waiting} answer${waiting > 1 ? "s wait" : " waits"} in this browser, not on disk yet.` : "";
      this.say(`The server does not answer. ${kept} Trying again.`, { trouble: true });
    } else if (this.trouble && !waiting) {
      this.say("Back in touch.");
    }
  }

  showName() {
    $("who").textContent = this.name;
    $("who").setAttribute("aria-label", `Labelling as ${this.name}; change`);
  }

  // Why this pair is asked. Of a repeat check nothing is said: whoever knows it is one is more careful.
  showReason(offer) {
    const text = !offer || offer.repeat ? "" : offer.reason || offer.strategy;
    Object.assign($("why"), { textContent: text, title: text && `Why this pair is asked: ${text}` });
  }

  showSizes(clips) {
    const [one, two] = clips.map(({ meta }) => meta);
    if (one.game && two.game && one.game !== two.game) {
      this.say(`These clips are of two games, ${one.game} and ${two.game}: X leaves the pair out.`, { alert: true });
    } else if (one.width !== two.width || one.height !== two.height) {
      this.say("These clips are of different sizes, perhaps of two games: X leaves the pair out.", { alert: true });
    }
  }

  showProblems(problems) {
    const fresh = problems.filter((problem) => !this.problems.has(problem));
    for (const problem of fresh) this.problems.add(problem);
    if (fresh.length) this.say(`Left out: ${fresh[0]}`);
  }

  showStanding(standing) {
    const { total, goal, due, today, mine, per_minute: rate, checks, skipped } = standing;
    $("total").textContent = total;
    $("of").textContent = `${goal ? `of ${goal} ` : ""}label${goal || total !== 1 ? "s" : ""}`;
    $("of").title = `${skipped} can’t tell, not counted`;
    $("goal").hidden = !goal;
    if (goal) Object.assign($("goal"), { max: goal, value: Math.min(total, goal) });
    const parts = [`yours ${mine}`, `today ${today}`];
    if (Number.isInteger(due)) parts.unshift(due ? `${due} due` : "none due"); // the training that goes on meanwhile says so
    if (rate) parts.push(`${rate < 10 ? rate : Math.round(rate)} a minute`);
    if (goal && total >= goal) parts.push("goal reached");
    else if (goal && rate) parts.push(`${duration((goal - total) / rate)} left`);
    $("pace").replaceChildren(...parts.map(words));
    const same = checks.filter(Boolean).length;
    $("checks").hidden = !checks.length;
    $("checks").replaceChildren(
      ...checks.map((agrees) => Object.assign(document.createElement("i"), { className: agrees ? "same" : "" })),
      `${same} of ${checks.length} the same when asked again`,
    );
  }

  showList() {
    if (this.review) return;
    const shown = [
      ...this.answered.slice(-3).map(({ offer, answer }) => [offer, SAID[answer], null]),
      ...this.deck.offers.map((offer, at) => [offer, ["now", "next"][at] ?? "", at]),
    ];
    // Rows are kept from one pair to the next: their pictures need not be made again.
    const rows = new Map();
    for (const [offer, text, at] of shown) {
      const row = this.rows.get(offer.id) ?? this.row(offer);
      rows.set(offer.id, row);
      row.button.classList.toggle("said", at === null);
      row.button.disabled = at === null;
      row.button.ariaDisabled = at === 0;
      row.text.textContent = text;
      if (at === 0) row.button.setAttribute("aria-current", "true");
      else row.button.removeAttribute("aria-current");
    }
    this.rows = rows;
    const focused = document.activeElement;
    $("list").replaceChildren(...Array.from(rows.values(), (row) => row.item));
    if (focused !== document.activeElement) focused.focus({ preventScroll: true }); // moving a row took it away
    $("list").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  row(offer) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    const text = document.createElement("span");
    Object.assign(button, {
      type: "button",
      className: "button",
      title: `${offer.sample1} and ${offer.sample2}: ${offer.reason || offer.strategy}`,
    });
    const pictures = sides(offer).map((id) => Object.assign(new Image(30, 34), { src: `/thumb/${id}.png`, alt: "" }));
    button.append(...pictures, text);
    button.addEventListener("click", () => {
      if (this.busy || offer.id === this.deck.current?.id) return;
      const rest = this.deck.offers.filter((other) => other.id !== offer.id);
      this.deck.set([offer, ...rest]);
      this.remember();
      this.display();
    });
    item.append(button);
    return { item, button, text };
  }
}

function side(label, offer) {
  if (label === null) return "x";
  return label === 0 ? "0" : label === offer.left ? "1" : "2";
}

// A few words that stay on one line.
function words(text) {
  return Object.assign(document.createElement("span"), { textContent: text });
}

function duration(minutes) {
  if (minutes < 1) return "1 min";
  return minutes < 90 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}

async function main() {
  const page = await pageId();
  let wait = 500;
  for (;;) {
    try {
      const session = await request("/api/session");
      const labeller = new Labeller(session, page);
      await labeller.start();
      return;
    } catch (error) {
      $("status").textContent = error.status ? error.message : "The server does not answer. Trying again.";
      $("status").classList.add("alert");
      if (error.status) return;
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 4000);
    }
  }
}

main();
