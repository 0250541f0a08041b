// Pairs whose label the reward model doubts, come from its page. They are asked as any others.

import { Comparing } from "./comparing.js";

const $ = (id) => document.getElementById(id);

export class Rechecking extends Comparing {
  back = "/model#recheck";

  // opened: the pair that was picked there, or null.
  constructor(page, opened) {
    super(page);
    this.opened = opened;
  }

  get strategy() {
    return "recheck";
  }

  begin() {
    document.body.classList.add("recheck");
    for (const id of ["resample", "strategy"]) $(id).disabled = true;
    $("rechecking").hidden = false;
    if (!this.opened) return;
    this.page.deck.set([this.opened.offer]);
    this.page.stage.display();
  }

  answered(answer) {
    history.replaceState(null, "", "?recheck="); // after a reload from the list, not this pair again
    super.answered(answer);
  }

  remember() {} // these come again by themselves; the ordinary pairs wait for the way back

  resample() {}
}
