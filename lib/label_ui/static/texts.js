// Two answers to one prompt: side by side in one scroll, so that they stay beside each other. Text only: nothing in an
// answer is ever taken for HTML.

import { markdown } from "./markdown.js";
import { refusal } from "./outbox.js";
import { giveFocusBack, pressed } from "./playback.js";

const $ = (id) => document.getElementById(id);

// How the deck gets an answer.
export const TEXTS = {
  async fetch(id) {
    const response = await fetch(`/text/${id}`);
    if (!response.ok) throw await refusal(response);
    return response.json();
  },
  decode: async (text) => text,
  close() {},
};

const MOST = 4e6; // pairs of words that are compared; longer texts are marked from the first difference to the last

// Two texts in runs of words with the white space after them: [run, whether the other text lacks it]. White space does
// not count.
export function differences(...texts) {
  const whole = texts.map((text) => text.match(/\S+\s*|^\s+/g) ?? []);
  const pieces = whole.map((all) => all.map((piece) => piece.trim()));
  const least = Math.min(...pieces.map(({ length }) => length));
  let start = 0;
  while (start < least && pieces[0][start] === pieces[1][start]) start++;
  let end = 0;
  while (end < least - start && pieces[0].at(-1 - end) === pieces[1].at(-1 - end)) end++;
  const [one, two] = pieces.map((all) => all.slice(start, all.length - end));
  const common = one.length * two.length <= MOST ? commonPieces(one, two) : [new Set(), new Set()];
  return whole.map((all, side) => {
    const runs = [];
    all.forEach((piece, at) => {
      const lacking = at >= start && at < all.length - end && !common[side].has(at - start);
      if (runs.at(-1)?.[1] === lacking) runs.at(-1)[0] += piece;
      else runs.push([piece, lacking]);
    });
    return runs;
  });
}

// Places in two lists of their longest common subsequence.
function commonPieces(one, two) {
  const width = two.length + 1;
  const longest = new Uint16Array((one.length + 1) * width); // of what follows each pair of places
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = two.length - 1; j >= 0; j--) {
      const here = i * width + j;
      longest[here] = one[i] === two[j] ? longest[here + width + 1] + 1 : Math.max(longest[here + width], longest[here + 1]);
    }
  }
  const found = [new Set(), new Set()];
  for (let i = 0, j = 0; i < one.length && j < two.length; ) {
    const here = i * width + j;
    if (one[i] === two[j]) {
      found[0].add(i++);
      found[1].add(j++);
    } else if (longest[here + width] >= longest[here + 1]) i++;
    else j++;
  }
  return found;
}

// Runs of `differences` as nodes.
function marked(runs) {
  return runs.flatMap(([run, lacking]) => {
    if (!lacking) return [run];
    const textContent = run.trimEnd();
    return [Object.assign(document.createElement("mark"), { textContent }), run.slice(textContent.length)];
  });
}

// The messages of a prompt as nodes; one alone needs no name.
function dialogue(messages) {
  if (messages.length === 1) return [messages[0].content];
  return messages.map(({ role, content }) => {
    const message = document.createElement("p");
    message.dir = "auto";
    // Directed itself, the name does not direct the message.
    message.append(Object.assign(document.createElement("small"), { textContent: role, dir: "ltr" }), content);
    return message;
  });
}

// Stands where the player of clips stands.
export class TextView {
  playing = false;
  marking = false; // whether differences are marked; off for each new pair, as marks lead the eye
  formatting = "markdown" in localStorage; // whether Markdown is formatted, which this browser remembers
  texts = null;

  // Marks the words that only one of the two has, or takes the marks off.
  mark() {
    this.marking = !this.marking;
    this.draw();
  }

  // Gives a long prompt more room, or takes it back.
  open() {
    $("prompt").classList.toggle("open");
    this.scrollPrompt();
  }

  // Shows Markdown formatted, or as it was written.
  format() {
    this.formatting = !this.formatting;
    if (this.formatting) localStorage.markdown = "yes";
    else localStorage.removeItem("markdown");
    this.marking = false;
    this.draw();
  }

  draw() {
    if (!this.texts) return;
    const texts = this.texts.map(({ text }) => text);
    const shape = this.formatting ? markdown : (text) => [text];
    const shaped = this.marking ? differences(...texts).map(marked) : texts.map(shape);
    shaped.forEach((nodes, at) => $(`text${at + 1}`).replaceChildren(...nodes));
  }

  // For after the answer: known before, it would sway it.
  get lengths() {
    const [left, right] = this.texts.map(({ text }) => text.match(/\S+/g)?.length ?? 0);
    return ` Words: ${left} and ${right}.`;
  }

  show([left, right]) {
    this.texts = [left, right];
    this.marking = false;
    $("prompt").replaceChildren(...dialogue(left.prompt));
    for (const [side, { finished }] of [[1, left], [2, right]]) {
      $(`end${side}`).textContent = finished ? "■" : "… cut off";
      $(`end${side}`).title = finished ? "The answer ends here" : "The answer was cut off at its longest";
    }
    this.draw();
    this.scrollPrompt();
    this.replay();
  }

  // Shows the last message of a dialogue, which is answered; of a text the beginning.
  scrollPrompt() {
    const box = $("prompt");
    const last = box.querySelector("p:last-child");
    box.scrollTop = last ? last.offsetTop - box.offsetTop - parseFloat(getComputedStyle(box).paddingTop) : 0;
  }

  clear() {
    this.texts = null;
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
      d: () => view.mark(),
      m: () => view.format(),
      p: () => view.open(),
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
