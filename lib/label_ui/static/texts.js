// Two answers to one prompt: side by side in one scroll, so that they stay beside each other. Text only: nothing in an
// answer is ever taken for HTML.

import { giveFocusBack, pressed } from "./playback.js";

const $ = (id) => document.getElementById(id);

// How the deck gets an answer.
export const TEXTS = {
  async fetch(id) {
    const response = await fetch(`/text/${id}`);
    const said = await response.json().catch(() => ({}));
    if (!response.ok) {
      const message = said.detail ?? said.error ?? "An answer did not come.";
      throw Object.assign(new Error(message), { status: response.status });
    }
    return said;
  },
  decode: async (text) => text,
  close() {},
};

// Stands where the player of clips stands.
export class TextView {
  playing = false;

  show([left, right]) {
    $("prompt").textContent = left.prompt;
    for (const [side, { text, finished }] of [[1, left], [2, right]]) {
      $(`text${side}`).textContent = text;
      $(`end${side}`).textContent = finished ? "■" : "… cut off";
      $(`end${side}`).title = finished ? "The answer ends here" : "The answer was cut off at its longest";
    }
    $("prompt").scrollTop = 0;
    this.replay();
  }

  clear() {
    for (const id of ["prompt", "text1", "text2", "end1", "end2"]) $(id).textContent = "";
  }

  replay() {
    $("texts").scrollTop = 0;
  }

  scroll(pages) {
    $("texts").scrollBy({ top: pages * $("texts").clientHeight });
  }

  pause() {}
}

// Keys of texts, where clips have those of playback.
export class Reading {
  constructor(view) {
    giveFocusBack();
    this.keys = {
      " ": () => view.scroll(0.85),
      r: () => view.replay(),
      ArrowDown: () => view.scroll(0.15),
      ArrowUp: () => view.scroll(-0.15),
      PageDown: () => view.scroll(0.85),
      PageUp: () => view.scroll(-0.85),
      Home: () => view.replay(),
      End: () => view.scroll(1e6),
    };
  }

  key(event, actions) {
    pressed(event, { ...this.keys, ...actions }, ["ArrowDown", "ArrowUp", "PageDown", "PageUp", " "]);
  }

  showPaused() {}
}
