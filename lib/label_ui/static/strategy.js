// The list of strategies by which pairs are chosen.

const $ = (id) => document.getElementById(id);

export class StrategyList {
  constructor(session) {
    this.session = session;
    this.value = sessionStorage.getItem("strategy") ?? session.strategy;
    if (!session.strategies.includes(this.value)) this.value = session.strategy;
    this.picking = false; // by mouse or touch rather than by Tab
  }

  wire(onChange) {
    const list = $("strategy");
    for (const name of this.session.strategies) list.append(new Option(name, name));
    list.value = this.value;
    list.addEventListener("pointerdown", () => {
      this.picking = true;
    });
    list.addEventListener("blur", () => {
      this.picking = false;
    });
    list.addEventListener("change", () => {
      this.value = list.value;
      sessionStorage.setItem("strategy", this.value);
      if (this.picking) list.blur(); // so that keys work again; reached by Tab, it keeps the focus
      onChange();
    });
  }

  // Whether a key is meant for the list.
  takes(event) {
    return event.target === $("strategy") && !this.picking;
  }
}
