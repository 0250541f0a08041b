// Plays every clip of the page on its canvas, and moves the cursor of its curve along.
"use strict";

const HOLD = 8; // frames for which the last one stays before the loop begins again
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

function signed(value, digits) {
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
}

class Clip {
  constructor(figure) {
    this.about = JSON.parse(figure.dataset.clip);
    this.canvas = figure.querySelector("canvas");
    this.image = figure.querySelector("img");
    this.cursor = figure.querySelector(".cursor");
    this.button = figure.querySelector("button");
    this.slider = figure.querySelector("input");
    this.output = figure.querySelector("output");
    this.position = 0; // frames since the loop began, not whole
    this.visible = false;
    this.play(!still);
    this.button.addEventListener("click", () => this.play(!this.playing));
    this.slider.addEventListener("input", () => {
      this.play(false);
      this.position = Number(this.slider.value);
      this.draw();
    });
    new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
    }).observe(figure);
    this.image.decode().then(() => this.draw());
  }

  play(on) {
    this.playing = on;
    this.button.textContent = on ? "Pause" : "Play";
  }

  advance(seconds) {
    if (!this.playing || !this.visible) return;
    this.position = (this.position + seconds * this.about.rate) % (this.about.steps + HOLD);
    this.draw();
  }

  draw() {
    const { steps, columns, every, length, from, to, curve, scores } = this.about;
    const frame = Math.min(Math.floor(this.position), steps - 1);
    if (frame === this.drawn || !this.image.naturalWidth) return;
    this.drawn = frame;
    const { width, height } = this.canvas;
    const x = (frame % columns) * width;
    const y = Math.floor(frame / columns) * height;
    this.canvas.getContext("2d").drawImage(this.image, x, y, width, height, 0, 0, width, height);
    const step = frame * every;
    const at = from + ((to - from) * step) / Math.max(1, length - 1);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    this.slider.value = frame;
    const value = this.about.signed ? signed(curve[step], 2) : curve[step].toFixed(2);
    const scored = scores?.[step] ? `, score ${signed(scores[step], 0)}` : "";
    this.output.textContent = `step ${step + 1} of ${length}: ${value}${scored}`;
  }
}

const clips = [...document.querySelectorAll(".clip")].map((figure) => new Clip(figure));
const all = document.querySelector("#all");
if (all) {
  const name = (on) => (all.textContent = on ? "Pause all clips" : "Play all clips");
  let on = !still;
  name(on);
  all.hidden = clips.length === 0;
  all.addEventListener("click", () => {
    on = !on;
    name(on);
    for (const clip of clips) clip.play(on);
  });
}
let last = null;
function tick(now) {
  // A tab that was hidden goes on where it was instead of leaping.
  const seconds = last === null ? 0 : Math.min(now - last, 250) / 1000;
  last = now;
  for (const clip of clips) clip.advance(seconds);
  requestAnimationFrame(tick);
}
requestAnimationFrame(tick);
