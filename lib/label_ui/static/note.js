// The flag: a note that goes with the answer to the pair on screen.

const $ = (id) => document.getElementById(id);

export class Note {
  constructor(panel) {
    this.panel = panel;
    this.text = "";
    this.offer = null; // the pair on screen
    this.earlier = new Map(); // offer id → the note it had, for pairs that come back
  }

  wire() {
    $("noteform").addEventListener("submit", (event) => {
      event.preventDefault();
      this.flag($("note").value.trim() || "flagged");
    });
  }

  open() {
    const from = document.activeElement;
    this.from = from.matches(":focus-visible") ? from : null; // reached by Tab: the focus returns there
    $("noteform").hidden = false;
    $("flag").setAttribute("aria-expanded", "true");
    $("note").value = this.text === "flagged" ? "" : this.text;
    $("note").focus();
  }

  set(text) {
    this.text = text;
    $("noteform").hidden = true;
    $("flag").setAttribute("aria-expanded", "false");
    $("flag").setAttribute("aria-pressed", Boolean(text));
    $("flag").title = text ? `Flagged: ${text}` : "Flag this pair with a note";
    if (document.activeElement === $("note")) {
      $("note").blur();
      this.from?.focus();
    }
  }

  flag(text) {
    this.set(text);
    this.panel.say(`Flagged: ${text}`);
  }

  // Takes what was typed without Enter, before an answer by a click or a tap.
  take() {
    const typed = $("noteform").hidden ? "" : $("note").value.trim();
    if (typed) this.flag(typed);
    return this.text;
  }

  // Another pair is on screen; the one before may come back.
  show(offer) {
    if (this.offer) this.keep(this.offer, this.text);
    this.offer = offer;
    this.set(this.earlier.get(offer.id) ?? "");
  }

  // Keeps a note for a pair that will be shown (again).
  keep(offer, text) {
    if (text) this.earlier.set(offer.id, text);
    else this.earlier.delete(offer.id);
  }
}
