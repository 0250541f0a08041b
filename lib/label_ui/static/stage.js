// The pair on screen: brought there once its clips are, and timed from then on.

import { Player } from "./player.js";
import { TextView } from "./texts.js";

const $ = (id) => document.getElementById(id);

export class Stage {
  constructor(page, { steps_per_second: rate, start_paused: paused, answers }) {
    this.page = page;
    this.shown = null; // id of the offer on screen
    this.appeared = 0; // ms, when it came
    this.away = 0; // ms spent elsewhere since
    this.startPaused = paused || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.player = answers ? new TextView() : new Player(
      [1, 2].map((i) => ({ canvas: $(`canvas${i}`), bar: $(`bar${i}`), action: $(`action${i}`) })),
      $("stage"),
      rate,
      (step, of) => {
        $("step").textContent = `step ${step} / ${of}`;
      },
    );
    this.player.playing = !this.startPaused;
  }

  wire() {
    let hidden = document.visibilityState === "hidden" ? 0 : null;
    document.addEventListener("visibilitychange", () => {
      // Time spent elsewhere is no response time.
      if (document.visibilityState === "hidden") hidden = performance.now();
      else if (hidden !== null) this.away += performance.now() - Math.max(hidden, this.appeared);
    });
  }

  // How long the pair has been on screen, ms.
  get elapsed() {
    return performance.now() - this.appeared;
  }

  // The same without the time spent elsewhere.
  get response() {
    return Math.max(0, Math.round(this.elapsed - this.away));
  }

  // Brings the first pair of the deck on screen, at once if its clips are there.
  display(pressed = null) {
    const { deck, mode, note, panel, playback } = this.page;
    const offer = deck.current;
    mode.list();
    $("stage").classList.toggle("empty", !offer);
    $("stage").classList.remove("loading");
    panel.reason(offer);
    if (!offer) {
      this.clear();
      panel.banner(mode.notice);
      return;
    }
    if (this.shown === offer.id) return;
    const clips = deck.ready(offer);
    if (!clips) {
      this.clear(); // its pictures may be gone already
      $("stage").classList.add("loading");
      deck.load(offer).then(
        () => {
          if (deck.current?.id === offer.id) this.display(pressed);
        },
        (error) => this.unplayable(offer, error),
      );
      return;
    }
    panel.banner("");
    if (this.startPaused) this.player.pause();
    this.player.show(clips);
    this.shown = offer.id;
    this.appeared = performance.now();
    this.away = 0;
    note.show(offer);
    this.enable();
    playback.showPaused();
    if (!this.page.session.answers) panel.sizes(clips);
    if (pressed !== null) {
      // From the key press to the first frame of the next pair on screen; read with PerformanceObserver.
      requestAnimationFrame(() => {
        performance.clearMeasures("next pair");
        performance.measure("next pair", { start: pressed });
      });
    }
  }

  clear() {
    this.shown = null;
    this.player.clear();
    this.enable();
  }

  unplayable(offer, error) {
    const { deck, mode, outbox, panel } = this.page;
    if (deck.current?.id !== offer.id) return;
    const undecodable = error instanceof DOMException && error.name === "InvalidStateError";
    if (undecodable || error.status === 422 || error.status === 404) {
      panel.leftOut(undecodable ? "A clip cannot be shown by this browser and is left out." : error.message);
      deck.drop(offer.id);
      mode.refill();
      this.display();
      return;
    }
    outbox.failed(error.status ? error.message : "");
    setTimeout(() => {
      deck.retry(offer);
      if (deck.current?.id !== offer.id || this.shown === offer.id) return;
      deck.load(offer).then(() => outbox.waiting || outbox.reached(), () => {});
      this.display();
    }, 1000);
  }

  // Outlines the clip that was chosen while the answer is on its way.
  mark(answer) {
    for (const one of document.querySelectorAll("[data-side]")) one.classList.toggle("chosen", answer === one.dataset.side);
  }

  enable() {
    const ready = this.page.answers.possible;
    // Not `disabled`, which would take the focus from somebody who answers by Tab and Space.
    for (const button of document.querySelectorAll("[data-answer]")) button.ariaDisabled = !ready;
    $("flag").ariaDisabled = !this.shown;
  }
}
