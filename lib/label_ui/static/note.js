// The flag: a note that goes with the answer to the pair on screen.

const $ = (id) => document.getElementById(id);

export class Note {
  constructor(panel) {
    this.panel = panel;
    this.text = "";
    this.offer = null; // the pair on screen
    this.kept = new Map(JSON.parse(sessionStorage.getItem("notes") ?? "[]")); // offer id → note, for pairs that come back
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
    this.keep(this.offer, text);
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
    this.offer = offer;
    this.set(this.kept.get(offer.id) ?? "");
  }

  // Keeps a note for a pair that will be shown (again), also after a reload.
  keep(offer, text) {
    if (text) this.kept.set(offer.id, text);
    else this.kept.delete(offer.id);
    sessionStorage.setItem("notes", JSON.stringify([...this.kept]));
  }
}
