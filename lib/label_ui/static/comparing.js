// The page's usual mode: pairs of the chosen strategy, one after the other. The other modes are rechecking.js (the same
// with pairs whose label the reward model doubts) and reviewing.js (one labelled pair).

import { SAID } from "./answers.js";
import { request } from "./outbox.js";

const BATCH = 10; // pairs held at a time
const HEARTBEAT = 30000; // ms; leases last two minutes
const RETRY = 2000; // ms

export class Comparing {
  back = null; // where Esc leads
  changes = false; // whether an answer replaces an earlier one on purpose

  constructor(page) {
    this.page = page;
    this.notice = ""; // why there is no pair
    this.filling = null; // the request for pairs that is under way
    this.again = false; // one more is wanted after it
  }

  get strategy() {
    return this.page.strategy.value;
  }

  async open() {
    this.begin();
    await this.refill();
    this.page.answers.loadHistory().catch(() => {});
    const renew = () => {
      if (document.visibilityState === "visible") this.refill();
    };
    setInterval(renew, HEARTBEAT);
    document.addEventListener("visibilitychange", renew);
  }

  // Pairs this tab held before a reload; the server renews them.
  begin() {
    const { answers, deck, labeller, session, stage } = this.page;
    const left = JSON.parse(sessionStorage.getItem("offers") ?? "null");
    if (left?.db === session.db && left.name === labeller.name) {
      answers.undone = new Set(left.undone);
      deck.set(left.offers);
      stage.display();
    }
  }

  remember() {
    const { answers, deck, labeller, outbox, session } = this.page;
    const sent = new Set(outbox.ops.map((op) => op.body.offer?.id)); // a reload must not ask these again
    const offers = deck.offers.filter((offer) => !sent.has(offer.id));
    const undone = offers.map(({ id }) => id).filter((id) => answers.undone.has(id));
    sessionStorage.setItem("offers", JSON.stringify({ db: session.db, name: labeller.name, offers, undone }));
  }

  // Renews the pairs ahead and asks for more. One request at a time; a call during one leads to one more.
  async refill(keep = null) {
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
    const { answers, deck, id, labeller, outbox, panel, session, stage } = this.page;
    clearTimeout(this.timer);
    const kept = (keep ?? deck.offers).slice(0, 50); // the server takes no more
    const asked = new Set(deck.offers.map((offer) => offer.id));
    let reply;
    try {
      reply = await request("/api/batch", {
        db: session.db, page: id, labeller: labeller.name, keep: kept, want: BATCH, strategy: this.strategy,
      });
    } catch (error) {
      outbox.failed(error.status ? error.message : "");
      this.timer = setTimeout(() => this.refill(), RETRY);
      return;
    }
    if (reply.answers !== session.answers) return location.reload();
    if (outbox.waiting) outbox.flush(); // the server is there: what waits need not wait any longer
    else outbox.reached();
    // The labeller may have answered during the request: keep what came off the deck off it, keep what was put on it
    // (an undone pair), and never take away the pair on screen.
    const now = deck.offers;
    const stay = new Set(now.map((offer) => offer.id));
    const fresh = reply.pairs.filter((offer) => stay.has(offer.id) || !asked.has(offer.id));
    const known = new Set(fresh.map((offer) => offer.id));
    const mine = now.filter((offer, at) => !known.has(offer.id) && (at === 0 || !asked.has(offer.id)));
    const current = now[0];
    const merged = [...mine, ...fresh];
    if (current) merged.sort((a, b) => (b.id === current.id) - (a.id === current.id));
    const answered = new Set(answers.given.map(({ offer }) => offer.id));
    deck.set(merged.filter((offer) => !answered.has(offer.id)));
    this.notice = reply.notice;
    panel.standing(reply.standing);
    panel.showProblems(reply.problems);
    this.remember();
    stage.display();
    if (!deck.offers.length) this.timer = setTimeout(() => this.refill(), RETRY);
  }

  // Draws the coming pairs anew.
  async resample() {
    const { answers, deck, panel } = this.page;
    if (answers.pending) return;
    panel.say("New pairs drawn.");
    while (this.filling) await this.filling;
    await this.refill(deck.offers.slice(0, 1));
  }

  // Brings a pair of the list forward.
  pick(offer) {
    const { answers, deck, stage } = this.page;
    if (answers.pending || offer.id === deck.current?.id) return;
    deck.set([offer, ...deck.offers.filter((other) => other.id !== offer.id)]);
    this.remember();
    stage.display();
  }

  // An answer is on disk, or waits in the outbox while the server is away.
  answered({ offer, answer, pressed, dropped }) {
    const { deck, outbox, panel, stage } = this.page;
    const lengths = stage.player.lengths ?? ""; // of this pair, before the next one is on screen
    deck.drop(offer.id);
    this.remember();
    if (!dropped && !outbox.offline) panel.say(`Saved: ${SAID[answer]}.${lengths}`);
    stage.display(pressed);
    this.page.showState();
    if (!outbox.offline) this.refill();
  }

  // The last answer that waited in the outbox is settled.
  caughtUp() {}

  undo() {
    this.page.answers.undo();
  }

  renamed() {
    this.page.answers.forget();
    this.refill();
  }

  list() {
    this.page.list.show(this.page.answers.given.slice(-3), this.page.deck.offers);
  }
}
