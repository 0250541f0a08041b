// The player's buttons and keys, the same on every page that plays clips.

const SPEEDS = [0.5, 1, 2, 4];

const $ = (id) => document.getElementById(id);

export class Playback {
  constructor(player, speed) {
    this.player = player;
    const press = (id, action) => $(id).addEventListener("click", action);
    press("pause", () => this.toggle());
    press("back", () => this.stepBy(-1));
    press("forth", () => this.stepBy(1));
    press("replay", () => this.replay());
    for (const speed of SPEEDS) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "button", textContent: `${speed === 0.5 ? "½" : speed}×` });
      button.dataset.speed = speed;
      button.addEventListener("click", () => this.chooseSpeed(speed));
      $("speed").append(button);
    }
    this.setSpeed(Number(localStorage.getItem("speed")) || speed);
    this.keys = {
      " ": () => this.toggle(),
      r: () => this.replay(),
      "-": () => this.changeSpeed(-1),
      "+": () => this.changeSpeed(1),
      "=": () => this.changeSpeed(1),
    };
    giveFocusBack();
  }

  // Does what a key says: one of `actions` or of the player's own.
  key(event, actions) {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      this.stepBy(event.key === "ArrowLeft" ? -1 : 1);
      return;
    }
    pressed(event, { ...this.keys, ...actions });
  }

  toggle() {
    if (this.player.playing) this.player.pause();
    else this.player.play();
    this.showPaused();
  }

  stepBy(by) {
    this.player.step(by);
    this.showPaused();
  }

  replay() {
    this.player.playing = true;
    this.player.replay();
    this.showPaused();
  }

  // Chosen by hand it is kept, and holds from then on whatever --speed says.
  chooseSpeed(speed) {
    localStorage.setItem("speed", speed);
    this.setSpeed(speed);
  }

  setSpeed(speed) {
    this.player.speed = SPEEDS.includes(speed) ? speed : 2;
    for (const button of $("speed").children) {
      button.setAttribute("aria-pressed", Number(button.dataset.speed) === this.player.speed);
    }
  }

  changeSpeed(by) {
    const at = SPEEDS.indexOf(this.player.speed) + by;
    this.chooseSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, at))]);
  }

  showPaused() {
    $("pausetext").textContent = this.player.playing ? "Pause" : "Play";
  }
}

// A button that was clicked gives the focus back, so that Space keeps its meaning.
export function giveFocusBack() {
  document.addEventListener("click", (event) => {
    if (event.detail > 0) event.target.closest("button")?.blur();
  });
}

// Does what a key says: one of `known`, by key. Held down, only those in `repeating` are done again and again.
export function pressed(event, known, repeating = []) {
  if (event.key === "Enter" && event.repeat) event.preventDefault(); // it would press the button again and again
  if (event.key === " " && event.target.matches("button:focus-visible, a:focus-visible")) return; // there by Tab: press it
  // What the key says; where it lies, if digits need Shift or letters are not Latin on this keyboard.
  let key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!(key in known) && !event.shiftKey && !/[a-z]/.test(key)) {
    key = /^(?:Digit|Numpad|Key)(.)$/.exec(event.code)?.[1].toLowerCase();
  }
  if (!(key in known)) return;
  event.preventDefault();
  if (!event.repeat || repeating.includes(key)) known[key](); // an answer is given once
}
