// The labelling screen: shows a pair, takes an answer by key or button, sees that it gets on disk, shows the next.
// What the page does next is its mode's business: comparing.js, rechecking.js, reviewing.js.

import { Answers } from "./answers.js";
import { Comparing } from "./comparing.js";
import { CLIPS, Deck } from "./deck.js";
import { Labeller } from "./labeller.js";
import { List } from "./list.js";
import { Note } from "./note.js";
import { Outbox, request } from "./outbox.js";
import { Panel } from "./panel.js";
import { Playback } from "./playback.js";
import { Rechecking } from "./rechecking.js";
import { Reviewing } from "./reviewing.js";
import { Stage } from "./stage.js";
import { StrategyList } from "./strategy.js";
import { Reading, TEXTS } from "./texts.js";
import { tabId } from "./tab.js";

const $ = (id) => document.getElementById(id);

// The parts of the page, which find each other here.
class Page {
  constructor(session, id) {
    this.session = session;
    this.id = id;
    document.body.classList.toggle("of-text", session.answers);
    if (session.answers) { // these may stand one above the other
      const [first, second] = document.querySelectorAll("[data-answer] > span");
      [first.textContent, second.textContent] = ["First better", "Second better"];
    }
    this.deck = new Deck(session.answers ? TEXTS : CLIPS);
    this.labeller = new Labeller(session);
    this.strategy = new StrategyList(session);
    this.panel = new Panel();
    this.note = new Note(this.panel);
    this.stage = new Stage(this, session);
    this.answers = new Answers(this);
    this.outbox = new Outbox(session.db, id, (op, reply) => this.answers.settled(op, reply), () => this.showState());
    this.list = new List((offer) => this.mode.pick(offer), session.answers);
    this.mode = new Comparing(this);
  }

  async start() {
    const mode = await this.chooseMode(); // before anything is wired: where the server does not answer, main() begins anew
    this.wire();
    if (!this.labeller.name) await this.labeller.ask();
    this.labeller.show();
    await this.outbox.flush();
    this.mode = mode;
    await mode.open();
  }

  async chooseMode() {
    const query = new URLSearchParams(location.search);
    const opened = query.get("pair")?.split(".");
    const recheck = query.get("recheck")?.split(".");
    const pair = (ids, flag = "") => request(`/api/pair/${ids.join("/")}${flag}`);
    if (opened?.length === 2) return new Reviewing(this, await pair(opened));
    if (recheck) return new Rechecking(this, recheck.length === 2 ? await pair(recheck, "?recheck=true") : null);
    return this.mode;
  }

  wire() {
    document.addEventListener("keydown", (event) => this.key(event));
    const { player } = this.stage;
    this.playback = this.session.answers ? new Reading(player) : new Playback(player, this.session.speed);
    this.strategy.wire(() => this.mode.resample());
    this.note.wire();
    this.stage.wire();
    $("model").hidden = !this.session.model;
    for (const button of document.querySelectorAll("[data-answer]")) {
      button.addEventListener("click", (event) => this.answers.answer(button.dataset.answer, event.timeStamp));
    }
    const press = (id, action) => $(id).addEventListener("click", action);
    press("undo", () => this.mode.undo());
    press("flag", () => this.flag());
    press("resample", () => this.mode.resample());
    press("who", () => this.rename());
    $("hints").hidden = "hinted" in localStorage;
    press("hinted", () => {
      localStorage.hinted = "yes";
      $("hints").hidden = true;
    });
    // What lies ahead here goes to others now rather than in two minutes. A page that is shown again asks for it anew.
    addEventListener("pagehide", () => {
      const leave = new Blob([JSON.stringify({ page: this.id })], { type: "application/json" });
      navigator.sendBeacon("/api/leave", leave);
    });
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.mode.refill();
    });
    addEventListener("beforeunload", (event) => {
      if (this.outbox.waiting && this.outbox.blocked) event.preventDefault();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target === $("note")) {
      if (event.key === "Escape") this.note.set("");
      return;
    }
    if (this.labeller.asking || this.strategy.takes(event)) return;
    $("strategy").blur();
    const answer = (answer) => () => this.answers.answer(answer, event.timeStamp);
    this.playback.key(event, {
      1: answer("1"),
      2: answer("2"),
      0: answer("0"),
      x: answer("x"),
      u: () => this.mode.undo(),
      Backspace: () => this.mode.undo(),
      f: () => this.flag(),
      n: () => this.mode.resample(),
      Escape: () => this.mode.back && location.assign(this.mode.back),
    });
  }

  flag() {
    if (this.stage.shown && !this.answers.pending) this.note.open();
  }

  async rename() {
    await this.labeller.ask();
    this.labeller.show();
    this.mode.renamed();
  }

  showState() {
    this.stage.enable();
    this.panel.connection(this.outbox);
  }
}

async function main() {
  const id = await tabId();
  let wait = 500;
  for (;;) {
    try {
      const session = await request("/api/session");
      await new Page(session, id).start();
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
