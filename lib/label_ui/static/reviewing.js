// One labelled pair, opened from the table: an answer replaces the labeller's own, and leads back there.

import { answerOf, SAID } from "./answers.js";

const $ = (id) => document.getElementById(id);

export class Reviewing {
  back = "/labels";
  changes = true;
  notice = "";

  // opened: the pair, and what everybody said about it.
  constructor(page, opened) {
    this.page = page;
    this.opened = opened;
  }

  open() {
    const { deck, labeller, note, stage } = this.page;
    const { offer, said } = this.opened;
    document.body.classList.add("review");
    for (const id of ["undo", "resample", "strategy"]) $(id).disabled = true;
    const lines = said.map((one) => {
      const turned = one.label && one.offer.sample1 !== offer.sample1; // the same pair, named in the other order
      const label = turned ? 3 - one.label : one.label;
      return `${one.labeller}: ${SAID[answerOf(label, offer)]}${one.flag ? ` (${one.flag})` : ""}`;
    });
    $("said").replaceChildren(
      ...(lines.length ? lines : ["Not labelled yet"]).map((line) =>
        Object.assign(document.createElement("li"), { textContent: line }),
      ),
    );
    $("opened").hidden = false;
    note.keep(offer, said.find((one) => one.labeller === labeller.name)?.flag);
    deck.set([offer]);
    stage.display();
  }

  answered({ dropped }) {
    const { deck, outbox, stage } = this.page;
    if (!dropped && !outbox.waiting) location.assign("/labels");
    else if (!dropped) deck.set([]); // answered, but not on disk yet: caughtUp() leads back
    stage.display();
    this.page.showState();
  }

  caughtUp(dropped) {
    if (!this.page.deck.current) this.answered({ dropped });
  }

  // This pair and no other: none is fetched, drawn anew, taken back or listed.
  remember() {}
  refill() {}
  resample() {}
  undo() {}
  renamed() {}
  list() {}
}
