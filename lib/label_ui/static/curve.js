// The learned reward of a clip's steps as a line, with a cursor where the player is. Pressing or dragging seeks.

const NS = "http://www.w3.org/2000/svg";
const LEFT = 38;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 24;
const LEAST = 2; // standard deviations up and down that are always shown, so that dull clips look dull

export function signed(value, digits = 2) {
  const text = Math.abs(value).toFixed(digits);
  return `${Number(text) === 0 ? "" : value < 0 ? "−" : "+"}${text}`;
}

export class Curve {
  // onHold() when a pointer comes down, onSeek(step) as it moves, onRelease() when it is lifted.
  constructor(svg, { onHold, onSeek, onRelease }) {
    this.svg = svg;
    this.rewards = [];
    this.step = 0;
    let held = false;
    const seek = (event) => {
      const x = event.clientX - svg.getBoundingClientRect().left;
      const step = Math.round(((x - LEFT) / Math.max(1, this.width - LEFT - RIGHT)) * (this.rewards.length - 1));
      onSeek(Math.max(0, Math.min(this.rewards.length - 1, step)));
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.rewards.length) return;
      held = true;
      svg.setPointerCapture(event.pointerId);
      onHold();
      seek(event);
    });
    svg.addEventListener("pointermove", (event) => held && seek(event));
    for (const end of ["pointerup", "pointercancel"]) {
      svg.addEventListener(end, () => {
        if (held) onRelease();
        held = false;
      });
    }
    new ResizeObserver(() => this.render()).observe(svg);
  }

  // others: more curves, drawn thin; scale: [lowest, highest] to show, otherwise as the rewards need it.
  show(rewards, { others = [], scale = null } = {}) {
    this.rewards = rewards;
    this.others = others;
    this.scale = scale ?? [Math.min(-LEAST, ...rewards), Math.max(LEAST, ...rewards)];
    this.step = 0;
    this.render();
  }

  at(step) {
    this.step = step;
    this.place();
  }

  x(step) {
    return LEFT + ((this.width - LEFT - RIGHT) * step) / Math.max(1, this.rewards.length - 1);
  }

  y(value) {
    return TOP + ((this.height - TOP - BOTTOM) * (this.high - value)) / (this.high - this.low);
  }

  render() {
    const { svg, rewards } = this;
    this.width = svg.clientWidth;
    this.height = svg.clientHeight;
    svg.replaceChildren();
    this.cursor = null;
    if (!rewards.length || !this.width) return;
    svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const [lowest, highest] = this.scale;
    const every = tick(highest - lowest, (this.height - TOP - BOTTOM) / 26);
    const digits = Math.max(0, -Math.floor(Math.log10(every)));
    this.high = Math.ceil(highest / every) * every;
    this.low = Math.floor(lowest / every) * every;
    const right = this.width - RIGHT;
    const bottom = this.height - BOTTOM;
    for (let i = Math.round(this.low / every); i <= Math.round(this.high / every); i += 1) {
      const y = this.y(i * every);
      this.add("line", { class: i === 0 ? "zero" : "grid", x1: LEFT, x2: right, y1: y, y2: y });
      const value = this.low < 0 ? signed(i * every, digits) : (i * every).toFixed(digits);
      this.add("text", { class: "value", x: LEFT - 7, y: y + 4 }, value);
    }
    const apart = Math.max(rewards.length > 20 ? 5 : 1, tick(rewards.length, (right - LEFT) / 60));
    for (let step = 1; step <= rewards.length; step += step === 1 && apart > 1 ? apart - 1 : apart) {
      this.add("line", { class: "mark", x1: this.x(step - 1), x2: this.x(step - 1), y1: bottom, y2: bottom + 4 });
      this.add("text", { class: "count", x: this.x(step - 1), y: this.height - 6 }, step === 1 ? "step 1" : step);
    }
    const joined = (values) => values.map((value, step) => `${this.x(step).toFixed(1)},${this.y(value).toFixed(1)}`).join(" ");
    const points = joined(rewards);
    const zero = this.y(0);
    this.add("polygon", { points: `${this.x(0)},${zero} ${points} ${this.x(rewards.length - 1)},${zero}` });
    for (const other of this.others) this.add("polyline", { class: "other", points: joined(other) });
    this.add("polyline", { points });
    this.cursor = this.add("line", { class: "cursor", y1: TOP, y2: bottom });
    this.dot = this.add("circle", { class: "cursor", r: 4.5 });
    svg.setAttribute("aria-valuemax", rewards.length);
    this.place();
  }

  place() {
    if (!this.cursor) return;
    const x = this.x(this.step);
    set(this.cursor, { x1: x, x2: x });
    set(this.dot, { cx: x, cy: this.y(this.rewards[this.step]) });
    this.svg.setAttribute("aria-valuenow", this.step + 1);
    this.svg.setAttribute("aria-valuetext", `step ${this.step + 1}: ${signed(this.rewards[this.step])}`);
  }

  add(name, attributes, text = "") {
    const element = set(document.createElementNS(NS, name), attributes);
    element.textContent = text;
    this.svg.append(element);
    return element;
  }
}

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The smallest of 0.05, 0.1, 0.2, 0.5, 1, … that divides a range into at most `most` parts.
function tick(range, most) {
  for (let size = 0.1; ; size *= 10) {
    for (const every of [size / 2, size, size * 2]) if (range / every <= Math.max(1, most)) return every;
  }
}
