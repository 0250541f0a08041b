// Answers: given, on their way, taken back.

import { request } from "./outbox.js";
import { newId } from "./tab.js";

export const SAID = { 1: "1 better", 2: "2 better", 0: "alike", x: "can’t tell" };

const BOUNCE = 150; // ms after a pair appears in which an answer cannot be meant for it
const KEPT = 500; // answers in memory; the server has them all

// What a label says as an answer to an offer: "1" left is better, "2" right is, "0" alike, "x" can't tell.
export function answerOf(label, offer) {
  if (label === null) return "x";
  return label === 0 ? "0" : label === offer.left ? "1" : "2";
}

export class Answers {
  constructor(page) {
    this.page = page;
    this.given = []; // [{offer, answer, flag}], latest last; what Undo takes back
    this.older = true; // whether the server may have earlier answers than these
    this.pending = null; // the one that the page waits for: {op, offer, answer, flag, pressed}
    this.lost = false; // whether one of those that wait in the outbox was dropped
    this.undone = new Set(); // ids of offers that came back; what held before the answer taken back may hold again
  }

  // Whether the pair on screen can be answered now.
  get possible() {
    const { deck, labeller, outbox, stage } = this.page;
    const offer = deck.current;
    return Boolean(offer && stage.shown === offer.id && !this.pending && !outbox.blocked && !labeller.asking);
  }

  async answer(answer, pressed) {
    const { deck, labeller, mode, note, outbox, panel, session, stage } = this.page;
    if (!this.possible || stage.elapsed < BOUNCE) return;
    const offer = deck.current;
    const flag = note.take();
    const op = outbox.add("/api/vote", {
      db: session.db,
      labeller: labeller.name,
      offer,
      label: { 0: 0, x: null, 1: offer.left, 2: 3 - offer.left }[answer],
      response_ms: stage.response,
      flag: flag || null,
      change: mode.changes || this.undone.has(offer.id),
    });
    this.pending = { op, offer, answer, flag, pressed };
    mode.remember();
    stage.enable();
    stage.mark(answer);
    setTimeout(() => this.pending?.op === op && !outbox.blocked && panel.say("Saving…"), 700);
    const sent = outbox.flush();
    op.late = outbox.offline; // then it waits, and so need not the labeller
    if (!op.late) await sent;
    if (this.pending?.op === op && outbox.offline) this.moveOn(); // it waits in the outbox; the page says so
    else if (this.pending?.op === op) this.page.showState();
  }

  // The server has dealt with a message of the outbox, perhaps one from before a reload.
  settled(op, reply) {
    const { mode, outbox, panel } = this.page;
    const dropped = reply.outcome === "dropped";
    if (reply.standing) panel.standing(reply.standing);
    if (dropped) {
      this.lost ||= Boolean(op.late);
      panel.say(`An answer was not counted: ${reply.reason}.`, { alert: true });
      this.given = this.given.filter(({ offer }) => offer.id !== op.body.offer?.id);
    }
    if (this.pending?.op === op) this.moveOn(dropped);
    else if (op.late && !outbox.waiting) {
      mode.caughtUp(dropped);
      if (!this.lost) panel.say("Connected again. All waiting answers are saved.");
      mode.refill();
    }
    if (!outbox.waiting) this.lost = false;
  }

  moveOn(dropped = false) {
    const { offer, answer, flag, pressed } = this.pending;
    this.forgetPending();
    if (!dropped) this.given.push({ offer, answer, flag });
    if (this.given.length > KEPT) {
      this.given.splice(0, KEPT / 2);
      this.older = true;
    }
    this.page.mode.answered({ offer, answer, pressed, dropped });
  }

  forgetPending() {
    this.pending = null;
    this.page.stage.mark(null);
  }

  async undo() {
    const { deck, labeller, mode, note, outbox, panel, session, stage } = this.page;
    if ((this.pending && !outbox.blocked) || labeller.asking) return;
    // One that waits because the server cannot write is taken back by a second message, not by dropping it.
    let last = this.pending;
    this.forgetPending();
    if (!last) {
      if (!this.given.length && this.older) await this.loadHistory().catch(() => {});
      last = this.given.pop();
    }
    if (!last) {
      panel.say("There is nothing to undo.");
      return;
    }
    outbox.add("/api/undo", {
      db: session.db, labeller: labeller.name, id: newId("u-"), target: last.offer.id,
    });
    // The same pair under a new id: the old one has been used.
    const offer = { ...last.offer, id: newId() };
    this.undone.add(offer.id);
    note.keep(offer, last.flag);
    deck.set([offer, ...deck.offers.filter(({ id }) => id !== last.offer.id)]);
    mode.remember();
    panel.say(`Undone: ${SAID[last.answer]}. Answer this pair again.`);
    stage.display();
    await outbox.flush();
    this.page.showState();
    if (!outbox.offline) mode.refill();
  }

  // Asks the server for earlier answers than those here.
  async loadHistory() {
    const before = this.given[0]?.offer.id;
    const undone = this.page.outbox.ops.map(({ body }) => body.target); // the server may not know yet
    const query = new URLSearchParams({ labeller: this.page.labeller.name, ...(before && { before }) });
    const said = await request(`/api/history?${query}`);
    const known = new Set([...undone, ...this.given.map(({ offer }) => offer.id)]);
    const earlier = said.filter(({ offer }) => !known.has(offer.id));
    this.given = [...earlier.map(({ offer, label, flag }) => ({ offer, answer: answerOf(label, offer), flag })), ...this.given];
    this.older = earlier.length > 0;
    this.page.mode.list();
  }

  // Somebody else labels from now on.
  forget() {
    this.given = [];
    this.older = true;
    this.loadHistory().catch(() => {});
  }
}
