// The list of this batch: the last answers, the pair on screen, and those that come.

import { SAID } from "./answers.js";
import { sides } from "./deck.js";

const $ = (id) => document.getElementById(id);

// Brings the rows of a list into this order. One that stays is not touched: moving it would cost the click under way.
export function arrange(list, rows) {
  for (const row of Array.from(list.children)) if (!rows.includes(row)) row.remove();
  rows.forEach((row, at) => row === list.children[at] || list.insertBefore(row, list.children[at] ?? null));
}

export class List {
  // onPick(offer) when a coming pair is clicked.
  // answers: whether the pairs are texts, which have no small pictures.
  constructor(onPick, answers) {
    this.onPick = onPick;
    this.answers = answers;
    this.rows = new Map(); // offer id → its row
  }

  show(answered, offers) {
    const shown = [
      ...answered.map(({ offer, answer }) => [offer, SAID[answer], null]),
      ...offers.map((offer, at) => [offer, ["now", "next"][at] ?? "", at]),
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
    arrange($("list"), Array.from(rows.values(), (row) => row.item));
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
      title: `${offer.sample1} and ${offer.sample2}`, // not the reason, which tells repeat checks
    });
    if (this.answers) button.append(`prompt ${offer.sample1.split("/")[0]}`, text);
    else button.append(...sides(offer).map((id) => Object.assign(new Image(30, 34), { src: `/thumb/${id}.png`, alt: "" })), text);
    button.addEventListener("click", () => this.onPick(offer));
    item.append(button);
    return { item, button, text };
  }
}
