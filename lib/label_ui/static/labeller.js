// Who labels in this browser: the name typed for this DB; else the one the server was given; else the last one typed.

const $ = (id) => document.getElementById(id);

export const labellerOf = ({ db, name }) =>
  localStorage.getItem(`labeller:${db}`) ?? (name || localStorage.getItem("labeller") || "");

export class Labeller {
  constructor(session) {
    this.db = session.db;
    this.name = labellerOf(session);
  }

  get asking() {
    return $("ask").open;
  }

  // Resolves when there is a name, which may be the one of before.
  ask() {
    return new Promise((resolve) => {
      $("askname").value = this.name;
      $("ask").showModal();
      $("ask").oncancel = (event) => {
        if (this.name) resolve();
        else event.preventDefault();
      };
      // A browser lets the first Esc be prevented, and not the second.
      $("ask").onclose = () => this.name || $("ask").showModal();
      $("askform").onsubmit = (event) => {
        event.preventDefault();
        const name = $("askname").value.trim();
        if (!name) return;
        this.name = name;
        localStorage.setItem(`labeller:${this.db}`, name);
        localStorage.setItem("labeller", name);
        $("ask").close();
        resolve();
      };
    });
  }

  show() {
    $("who").textContent = this.name;
    $("who").setAttribute("aria-label", `Labelling as ${this.name}; change`);
  }
}
